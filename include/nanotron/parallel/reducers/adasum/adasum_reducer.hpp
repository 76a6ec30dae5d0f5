#pragma once

// Adasum in the place of the sum (adasum_plan.hpp), tensor by tensor: R Adasum(g_1, ..., g_R), g_r being what
// replica r adds to the gradient of the mean loss. Equal gradients give their sum, as without it; orthogonal ones add
// up to R times that, each being the gradient of its own replica's mean loss. After backward:
//
//   each replica gets its piece of all gradients (all-to-all)
//   inner products of the replicas' gradients, by tensor, summed over pieces and over the tensor-parallel group
//   coefficients, on the host
//   the piece combined, and gathered
//
// Every replica ends with the same bits. Nothing is carried from step to step.

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
  // The ranks' rows of a range of the section, as far as it is in this rank's piece.
  MatrixRef<const M> rows_of(const Range& range) const;
  void exchange();
  void measure();
  void solve();
  void combine();

  std::vector<AdasumTensor> tensors_;  // counted from the beginning of the section
  Range piece_;                        // of the section: what this rank combines
  Vector<M> combined_;                 // piece_size
  Vector<M> received_;                 // (ranks, this rank's piece), then the gathered result
  Vector<double> products_;            // (tensors, pairs of ranks)
  Vector<double> coefficients_;        // (tensors, ranks)
  std::vector<std::size_t> send_counts_, receive_counts_;
  typename Vector<double>::HostMirror host_products_, host_coefficients_;
};

}  // namespace nanotron::parallel
