#pragma once

// Muon (Jordan et al. 2024) for the matrices of the layers, AdamW for vectors, embedding and head. With O the
// orthogonalised momentum of a whole logical matrix (kernels/optim/muon.hpp), however it is cut:
//
//   p = (1 - learning_rate weight_decay) p - learning_rate 0.2 sqrt(max(rows, columns)) O
//
// The factor brings the root mean square of an update to that of AdamW, about 0.2, so that learning rate and weight
// decay carry over (Liu et al. 2025, "Muon is scalable for LLM training", section 2.2).
//
// Unit by unit, all of a layer but its experts or these, whom other ranks hold: the look-ahead momentum is gathered, first the pieces of shard ranks, then the units of
// tensor-parallel ranks; each matrix is put together and orthogonalised by one rank of the tp x shards that hold a
// unit, and broadcast to them. A unit having U elements and the whole matrices W, t tp and s shard ranks each take
// t U + W and the workspace of one matrix, and hand over, for each layer:
//
//   t > 1   U, and W of the matrices its shard rank works on        s > 1   U / s + W

#include "nanotron/optim/adamw.hpp"
#include "nanotron/optim/muon_layout.hpp"

namespace nanotron::optim {

template <class M>
class Muon : public Optimizer<M> {
 public:
  Muon(const deck::Config& config, const OptimizerSetup& place, Arena& arena);

  void update(Device& device, Vector<M> parameters, Vector<const M> gradient, double learning_rate,
              double gradient_scale) override;
  std::string name() const override { return "muon"; }
  std::vector<Moment<M>> moments() const override;
  comm::StepTraffic traffic() const override;
  std::int64_t steps() const override { return adamw_.steps(); }
  void set_steps(std::int64_t steps) override { adamw_.set_steps(steps); }

 private:
  /// A part of one matrix, and where it begins in the unit and in this rank's shard of the matrix.
  struct Piece {
    UpdatePart part;
    std::size_t matrix = 0;
    index_t in_unit = 0, in_shard = 0;
  };
  /// The units that the same ranks hold.
  struct Stack {
    MuonLayout layout;
    std::vector<MatrixShard> local;          // of each matrix: all that this rank computes with
    comm::Group* shards;
    index_t unit_size = 0;                   // of this rank
    std::vector<std::vector<Piece>> layers;  // of each layer
  };
  Stack stack_of(const deck::Config& config, const OptimizerSetup& place, const model::Section& section) const;
  std::vector<Stack> stacks_of(const deck::Config& config, const OptimizerSetup& place) const;
  index_t most(index_t MuonLayout::*of) const;

  void look_ahead(Device& device, const Stack& stack, std::size_t layer, Vector<const M> gradient, double gradient_scale);
  void gather(Device& device, const Stack& stack);
  void orthogonalise(Device& device, const Stack& stack);
  void descend(Device& device, const Stack& stack, std::size_t layer, Vector<M> parameters, double learning_rate);
  Matrix<M> whole(const HiddenMatrix& m) const { return Matrix<M>(whole_.data() + m.at, m.rows, m.columns); }

  deck::OptimizerConfig config_;
  comm::Group* tp_;
  nn::ParameterLayouts layouts_;  // with the momentum as moments
  std::vector<Stack> stacks_;
  Adamw<M> adamw_;
  Vector<M> momentum_;
  Vector<M> gathered_;   // units of the tensor-parallel ranks; as all below shared by the stacks
  Vector<M> whole_;
  Vector<M> workspace_;
};

}  // namespace nanotron::optim
