#include "nanotron/nn/vocab/shard_gradients.hpp"

#include "nanotron/base/types.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"

namespace nanotron::nn {

template <class T>
void ShardGradients<T>::clear(Device& device) const {
  if (!is_empty()) kernels::fill<M>(device, flat(memory_), 0.0);
}

template <class T>
LinearWeights<T> ShardGradients<T>::of(int shard, const LinearWeights<T>& whole) const {
  LinearWeights<T> weights = whole;
  const Vector<M> sums = of(shard);
  weights.gradient = Matrix<M>(sums.data(), whole.gradient.extent(0), whole.gradient.extent(1));
  weights.bias_gradient = Vector<M>(sums.data() + whole.gradient.size(), whole.bias_gradient.extent(0));
  return weights;
}

template <class T>
void ShardGradients<T>::add_to(Device& device, const Matrix<M>& gradient, const Vector<M>& bias_gradient) const {
  if (is_empty()) return;
  const auto add = [&](int into, int from) { kernels::add<M>(device, of(from), of(into)); };
  TreeStack tree;
  for (int s = 0; s < shards(); ++s) {
    if (tree.top() != s) kernels::copy<M>(device, of(s), of(tree.top()));
    tree.push(add);
  }
  tree.finish(add);
  const auto matrix = static_cast<index_t>(gradient.size());
  kernels::add<M>(device, Vector<M>(memory_.data(), matrix), flat(gradient));
  if (bias_gradient.extent(0) == 0) return;
  kernels::add<M>(device, Vector<M>(memory_.data() + matrix, bias_gradient.extent(0)), bias_gradient);
}

NANOTRON_INSTANTIATE_CLASS(ShardGradients)

}  // namespace nanotron::nn
