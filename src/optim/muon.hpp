#pragma once

// Muon (Jordan et al. 2024) for the 2-D parameters of the layers, AdamW for 1-D parameters, embedding and head. With O
// the orthogonalised momentum of a whole logical matrix (kernels/optim/muon.hpp), however it is sharded:
//
//   p = (1 - learning_rate weight_decay) p - learning_rate 0.2 sqrt(max(rows, columns)) O
//
// (the second term times model::muon_rate, which is 1 without mup). The factor brings the root mean square of an update
// to that of AdamW, about 0.2, so that learning rate and weight decay carry over (Liu et al. 2025, "Muon is scalable
// for LLM training", section 2.2).
//
// The update runs unit by unit: a layer without its experts, or the experts of a layer, which other ranks store.
//
//   look_ahead       each rank: Nesterov momentum of its elements
//   gather           all-gather of the unit over the shard group, then over the tensor-parallel group
//   orthogonalise    one of the t S ranks assembles and orthogonalises each matrix, and broadcasts it
//   descend          each rank: its elements
//
// With t tensor-parallel ranks, S ranks in the shard group, U elements in a unit on a rank and W in its whole matrices,
// a rank needs t U + W elements and the workspace of one matrix. It passes to collectives per layer:
//
//   t > 1   U, and the matrices that its shard rank orthogonalises        S > 1   U / S + W

#include "adamw.hpp"
#include "muon_layout.hpp"

namespace nanotron::optim {

template <class M>
class Muon : public Optimizer<M> {
 public:
  Muon(const deck::Config& config, const OptimizerSetup& place, Arena& arena);

  void update(Device& device, const UpdatedWeights<M>& weights, Vector<const M> gradient, double learning_rate,
              Vector<const kernels::UpdateScalars> scalars) override;
  std::string name() const override { return "muon"; }
  std::vector<Moment<M>> moments() const override;
  comm::StepTraffic traffic() const override;
  std::int64_t steps() const override { return adamw_.steps(); }
  void set_steps(std::int64_t steps) override { adamw_.set_steps(steps); }

 private:
  /// A part of one matrix, and its offsets in the unit and in this rank's shard of the matrix.
  struct Piece {
    UpdatePart part;
    std::size_t matrix = 0;
    index_t in_unit = 0, in_shard = 0;
  };
  /// The units of one section: stored on the same ranks.
  struct Stack {
    MuonLayout layout;
    std::vector<MatrixShard> local;  // per matrix: the shard that this rank computes with
    comm::Group* shards;
    index_t unit_size = 0;                   // on this rank
    std::vector<std::vector<Piece>> layers;  // per layer
  };
  Stack stack_of(const deck::Config& config, const OptimizerSetup& place, const model::Section& section) const;
  std::vector<Stack> stacks_of(const deck::Config& config, const OptimizerSetup& place) const;
  index_t most(index_t MuonLayout::*of) const;

  void look_ahead(Device& device, const Stack& stack, std::size_t layer, Vector<const M> gradient,
                  Vector<const kernels::UpdateScalars> scalars);
  void gather(Device& device, const Stack& stack);
  void orthogonalise(Device& device, const Stack& stack);
  void descend(Device& device, const Stack& stack, std::size_t layer, const UpdatedWeights<M>& weights,
               double learning_rate, Vector<const kernels::UpdateScalars> scalars);
  Matrix<M> whole(const HiddenMatrix& m) const { return Matrix<M>(whole_.data() + m.at, m.rows, m.columns); }

  deck::OptimizerConfig config_;
  comm::Group* tp_;
  nn::ParameterLayouts layouts_;  // moments: the momentum
  std::vector<Stack> stacks_;
  Adamw<M> adamw_;
  Vector<M> momentum_;
  Vector<M> gathered_;  // units of all tensor-parallel ranks; shared by the stacks, as are those below
  Vector<M> whole_;
  Vector<M> workspace_;
};

}  // namespace nanotron::optim
