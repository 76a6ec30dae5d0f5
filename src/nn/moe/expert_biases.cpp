#include "nanotron/nn/moe/expert_biases.hpp"

#include <algorithm>

#include "nanotron/base/types.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/moe/expert_bias.hpp"
#include "nn/linear/rows.hpp"

namespace nanotron::nn {
namespace {

// f(expert, its rows) for each expert that has rows.
template <class T, class F>
void for_each_expert(const std::vector<ExpertBias<T>>& experts, const ExpertRows& rows, const F& f) {
  for (std::size_t e = 0; e < experts.size(); ++e) {
    const Range of_expert{rows.begin[e], rows.begin[e + 1]};
    if (of_expert.size() > 0) f(experts[e], of_expert);
  }
}

template <class U>
Vector<U> elements(const Vector<U>& v, const Range& r) {
  return Vector<U>(v.data() + r.begin, r.size());
}

}  // namespace

template <class T>
index_t ExpertBiases<T>::workspace_size(Processor processor, const MoeSizes& s) {
  return std::max(kernels::bias_workspace_size(processor, s.rows, 2 * s.width),
                  kernels::bias_workspace_size(processor, s.rows, s.hidden));
}

template <class T>
void ExpertBiases<T>::add_gate_up(Device& device, const ExpertRows& rows, Matrix<T> gate_up) const {
  for_each_expert(experts_, rows, [&](const ExpertBias<T>& b, const Range& r) {
    kernels::bias_add<T>(device, rows_of(gate_up, r), b.gate_up);
  });
}

template <class T>
void ExpertBiases<T>::add_down(Device& device, const ExpertRows& rows, Vector<const M> weights, Matrix<T> y) const {
  if (!adds_down_) return;
  for_each_expert(experts_, rows, [&](const ExpertBias<T>& b, const Range& r) {
    kernels::add_weighted_bias<T>(device, elements(weights, r), b.down, rows_of(y, r));
  });
}

template <class T>
void ExpertBiases<T>::backward_weights(Device& device, const ExpertRows& rows, Matrix<const T> dy,
                                       Vector<M> dweights) const {
  if (!adds_down_) return;
  for_each_expert(experts_, rows, [&](const ExpertBias<T>& b, const Range& r) {
    kernels::add_bias_dots<T>(device, rows_of(dy, r), b.down, elements(dweights, r));
  });
}

template <class T>
void ExpertBiases<T>::backward_gate_up(Device& device, const ExpertRows& rows, Matrix<const T> dgate_up,
                                       Vector<M> workspace) const {
  for_each_expert(experts_, rows, [&](const ExpertBias<T>& b, const Range& r) {
    kernels::bias_backward<T>(device, rows_of(dgate_up, r), b.gate_up_gradient, workspace);
  });
}

template <class T>
void ExpertBiases<T>::backward_down(Device& device, const ExpertRows& rows, Matrix<T> dy, Vector<const M> weights,
                                    Vector<M> workspace) const {
  for_each_expert(experts_, rows, [&](const ExpertBias<T>& b, const Range& r) {
    kernels::scale_rows<T>(device, Matrix<const T>(rows_of(dy, r)), elements(weights, r), rows_of(dy, r));
    kernels::bias_backward<T>(device, Matrix<const T>(rows_of(dy, r)), b.down_gradient, workspace);
  });
}

NANOTRON_INSTANTIATE_CLASS(ExpertBiases)

}  // namespace nanotron::nn
