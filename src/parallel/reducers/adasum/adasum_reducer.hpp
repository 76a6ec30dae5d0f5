#pragma once

// Adasum (adasum_plan.hpp) instead of the sum, tensor by tensor, over R data-parallel ranks:
//
//   R Adasum(g_1, ..., g_R)        g_r: the contribution of rank r to the gradient of the mean loss
//
// Equal g_r give sum g_r, as an all-reduce would; orthogonal ones give R sum g_r. After backward:
//
//   all-to-all: each rank receives its shard of all R gradients
//   inner products per tensor, all-reduced over the data-parallel and the tensor-parallel group
//   coefficients, on the host
//   linear combination of the shard, then all-gather
//
// All ranks end with the same bits. No state is kept between steps.

#include <vector>

#include "nanotron/parallel/reducers/adasum/adasum_plan.hpp"
#include "nanotron/parallel/reducers/gradient_reducer.hpp"

namespace nanotron::parallel {

template <class T>
class AdasumReducer final : public GradientReducer<T> {
 public:
  using M = master_t<T>;
  explicit AdasumReducer(const ReducerContext<T>& context);

 private:
  void start_step() override;
  void completed(index_t) override {}
  void finish_step() override;
  comm::StepTraffic strategy_traffic() const override;

  index_t ranks() const { return this->data().size(); }
  // (R, columns): what all ranks' gradients have of a range of the section, within this rank's shard.
  MatrixRef<const M> rows_of(const Range& range) const;
  void exchange();
  void measure();
  void solve();
  void combine();

  std::vector<AdasumTensor> tensors_;  // offsets from the beginning of the section
  Range shard_;                        // of the section: what this rank combines
  Vector<M> combined_;                 // combined_size
  Vector<M> received_;                 // (ranks, this rank's shard), then the gathered result
  Vector<double> products_;            // inner products (tensors, pairs of ranks)
  Vector<double> coefficients_;        // (tensors, ranks)
  std::vector<std::size_t> send_counts_, receive_counts_;
  HostMirror<Vector<double>> host_products_, host_coefficients_;
};

}  // namespace nanotron::parallel
