#pragma once

// Adasum in the place of the sum (parallel/reducers/adasum_plan.hpp), tensor by tensor: R Adasum(g_1, ..., g_R), g_r being what
// replica r adds to the gradient of the mean loss. Equal gradients give their sum, as without it; orthogonal ones add
// up to R times that, each being the gradient of its own replica's mean loss. Behind backward:
//
//   each replica gets its piece of all gradients (all-to-all)
//   inner products of the replicas' gradients, by tensor, summed over pieces and over the tensor-parallel group
//   coefficients, on the host
//   the piece combined, and gathered
//
// Every replica ends with the same bits. Nothing is carried from step to step.

#include <vector>

#include "nanotron/parallel/reducers/gradient_sum.hpp"

namespace nanotron::parallel {

template <class T>
class Adasum final : public GradientSum<T> {
 public:
  using M = master_t<T>;
  Adasum(model::Transformer<T>& model, const model::Section& section, const AdasumMemory<M>& memory,
         comm::Group& replicas, Device& device, const SumRule& rule);

  void begin_step() override;
  void begin(index_t) override {}
  void end(index_t unit) override;
  void finish() override;

 private:
  // The replicas' rows of a range of the section, as far as it is in this rank's piece.
  MatrixRef<const M> rows_of(const Range& range) const;
  void exchange();
  void measure();
  void solve();
  void combine();

  model::Transformer<T>* model_;
  model::Section section_;
  Vector<M> gradient_;                 // of the section
  std::vector<AdasumTensor> tensors_;  // those of the section, counted from its beginning
  AdasumMemory<M> memory_;
  Vector<double> products_;            // as far as tensors_ need them
  comm::Group* replicas_;
  Device* device_;
  UnitCount count_;
  Range piece_;
  std::vector<std::size_t> send_counts_, receive_counts_;
  typename Vector<double>::HostMirror gram_, coefficients_;  // on the host
};

}  // namespace nanotron::parallel
