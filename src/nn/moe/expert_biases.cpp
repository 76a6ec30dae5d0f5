#include "nanotron/nn/moe/expert_biases.hpp"

#include <algorithm>

#include "nanotron/base/types.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/moe/expert_bias.hpp"
#include "nn/linear/rows.hpp"

namespace nanotron::nn {
namespace {

Range of_expert(const ExpertRows& rows, std::size_t e) { return {rows.begin[e], rows.begin[e + 1]}; }

// f(expert, its rows) for each expert that has rows.
template <class T, class F>
void for_each_expert(const std::vector<ExpertBias<T>>& experts, const ExpertRows& rows, const F& f) {
  for (std::size_t e = 0; e < experts.size(); ++e) {
    if (const Range here = of_expert(rows, e); here.size() > 0) f(experts[e], here);
  }
}

template <class U>
Vector<U> elements(const Vector<U>& v, const Range& r) {
  return Vector<U>(v.data() + r.begin, r.size());
}

}  // namespace

template <class T>
index_t ExpertBiases<T>::workspace_size(Processor processor, const MoeSizes& s) {
  const index_t segments = std::max<index_t>(1, s.cuts.ranks * s.cuts.shards_on_rank);
  return kernels::bias_workspace_size(processor, s.rows, std::max(2 * s.width, s.hidden), segments);
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
  for (std::size_t e = 0; e < experts_.size(); ++e)
    add_sums(device, rows, e, dgate_up, experts_[e].gate_up_gradient, workspace);
}

template <class T>
void ExpertBiases<T>::backward_down(Device& device, const ExpertRows& rows, Matrix<T> dy, Vector<const M> weights,
                                    Vector<M> workspace) const {
  for_each_expert(experts_, rows, [&](const ExpertBias<T>&, const Range& r) {
    kernels::scale_rows<T>(device, Matrix<const T>(rows_of(dy, r)), elements(weights, r), rows_of(dy, r));
  });
  for (std::size_t e = 0; e < experts_.size(); ++e) add_sums(device, rows, e, dy, experts_[e].down_gradient, workspace);
}

template <class T>
void ExpertBiases<T>::add_sums(Device& device, const ExpertRows& rows, std::size_t e, Matrix<const T> dy,
                               Vector<M> dbias, Vector<M> workspace) const {
  const Range all = of_expert(rows, e);
  if (all.size() == 0) return;
  if (rows.cuts.extent(0) == 0) return kernels::bias_backward<T>(device, rows_of(dy, all), dbias, workspace);
  const auto boundaries = static_cast<index_t>(rows.cuts.extent(1));
  for (index_t s = 0; s < sequences_; ++s) {
    const std::int64_t* cuts = rows.cuts.data() + (static_cast<index_t>(e) * sequences_ + s) * boundaries;
    kernels::cut_bias_backward<T>(device, rows_of(dy, rows.of_sequence(e, s, sequences_)), cuts, boundaries - 1,
                                  Vector<M>(dbias.data() + s * gradient_stride_, dbias.extent(0)), workspace);
  }
}

NANOTRON_INSTANTIATE_CLASS(ExpertBiases)

}  // namespace nanotron::nn
