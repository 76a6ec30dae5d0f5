// Gradients whose parts lie on the ranks of a tensor-parallel group.

#include "nanotron/kernels/elementwise/copy_matrix.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/model/transformer.hpp"

namespace nanotron::model {

template <class T>
void Transformer<T>::sum_partial_gradients(const Range& range) {
  if (tp_->size() == 1) return;
  for (const nn::ParameterSpec& spec : table_.specs) {
    if (!spec.gradient_is_partial) continue;
    for (index_t layer = 0; layer < spec.local_layers(); ++layer) {
      const index_t offset = spec.offset_of(layer);
      if (range.contains(offset)) {
        sum_partial_gradient(spec, buffers_.gradient.data() + buffers_.places.gradient.at(offset));
      }
    }
  }
}

template <class T>
void Transformer<T>::sum_partial_gradient(const nn::ParameterSpec& spec, M* local) {
  if (spec.cut == nn::Cut::none) {
    comm::all_reduce(*tp_, local, static_cast<std::size_t>(spec.local_size()), comm::ReduceOp::sum,
                     device_->stream());
    return;
  }
  const MatrixRef<M> mine(local, spec.local_rows(), spec.columns);
  const Vector<M> whole(partial_.data(), spec.rows * spec.columns);
  const MatrixRef<M> part =
      MatrixRef<M>(whole.data(), spec.rows, spec.columns).row_block(spec.local.begin, spec.local.size());
  kernels::fill<M>(*device_, whole, 0.0);
  kernels::copy_matrix<M>(*device_, mine, part);
  comm::all_reduce(*tp_, whole.data(), whole.size(), comm::ReduceOp::sum, device_->stream());
  kernels::copy_matrix<M>(*device_, part, mine);
}

#define NANOTRON_INSTANTIATE(T)                                           \
  template void Transformer<T>::sum_partial_gradients(const Range&);      \
  template void Transformer<T>::sum_partial_gradient(const nn::ParameterSpec&, master_t<T>*);
NANOTRON_INSTANTIATE(double)
NANOTRON_INSTANTIATE(float)
NANOTRON_INSTANTIATE(bf16)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::model
