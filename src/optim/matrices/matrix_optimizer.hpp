#pragma once

// Base of the optimizers that see whole logical matrices, however they are sharded: the 2-D parameters of the layers.
// 1-D parameters, embedding and head have AdamW. Private to optim.
//
// The update runs unit by unit: a layer without its experts, or the experts of a layer, which other ranks store.
//
//   prepare     each rank: its elements of what the optimizer has to see, such as a momentum
//   gather      all-gather of the unit over the shard group, then over the tensor-parallel group
//   compute     one of the t S ranks assembles each matrix, computes its update, and broadcasts it
//   descend     each rank: its elements
//
// With t tensor-parallel ranks, S ranks in the shard group, U elements in a unit on a rank and W in its whole matrices,
// a rank needs t U + W elements, a workspace of GEMMs, and what compute needs. It passes to collectives per layer:
//
//   t > 1   U, and the matrices that ranks with its shard rank own        S > 1   U / S + W

#include <memory>
#include <string>
#include <vector>

#include "matrix_layout.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/optim/optimizer.hpp"

namespace nanotron::optim {

template <class M>
class MatrixOptimizer : public Optimizer<M> {
 public:
  /// region: the name of the update in profiles. work: of a matrix, by which they are dealt out.
  MatrixOptimizer(const char* region, MatrixWork work, const deck::Config& config, const OptimizerSetup& setup,
                  Arena& arena);

  void update(Device& device, const UpdatedWeights<M>& weights, Vector<const M> gradient, double learning_rate,
              Vector<const kernels::UpdateScalars> scalars) override;
  void finish_update(Device& device) override { adamw_->finish_update(device); }
  std::vector<Moment<M>> moments() const override { return adamw_->moments(); }  // of the other parameters
  comm::StepTraffic traffic() const override;

 protected:
  /// A part of one matrix, and its offsets in the unit and in this rank's shard of the matrix.
  struct Piece {
    UpdatePart part;
    std::size_t matrix = 0;
    index_t in_unit = 0, in_shard = 0;
  };
  /// The units of one section, which the same ranks store, that have the same matrices.
  struct Stack {
    MatrixLayout layout;
    std::vector<MatrixShard> local;  // per matrix: the shard that this rank computes with
    comm::Group *tp, *shards;
    index_t unit_size = 0;                   // on this rank
    std::vector<std::vector<Piece>> layers;  // per layer
    std::vector<index_t> numbers;            // of the layers in the model
  };
  /// One of the matrices of a layer of a stack.
  struct Place {
    std::size_t stack = 0, layer = 0, matrix = 0;
  };
  struct Descent {
    double keep = 1.0, rate = 0.0;  // p = keep p - rate update
  };

  const deck::OptimizerConfig& config() const { return config_; }
  const nn::ParameterLayouts& layouts() const { return layouts_; }  // moments: of the matrices
  const std::vector<Stack>& stacks() const { return stacks_; }
  const HiddenMatrix& matrix(const Place& at) const { return stacks_[at.stack].layout.matrices[at.matrix]; }
  bool owns(const Place& at) const;
  /// f(place) for all matrices that this rank owns.
  template <class F>
  void for_each_owned(const F& f) const {
    for (Place at; at.stack < stacks_.size(); ++at.stack) {
      for (at.layer = 0; at.layer < stacks_[at.stack].layers.size(); ++at.layer) {
        for (at.matrix = 0; at.matrix < stacks_[at.stack].layout.matrices.size(); ++at.matrix) {
          if (owns(at)) f(at);
        }
      }
    }
  }

 private:
  /// Whether update steps() + 1 changes the matrices. A plan is of an update that does.
  virtual bool descends() const { return true; }
  /// to <- what compute() needs of the elements of a part.
  virtual void prepare(Device& device, const UpdatePart& part, Vector<const M> gradient, Vector<M> to,
                       Vector<const kernels::UpdateScalars> scalars) = 0;
  /// whole: what was prepared <- the update.
  virtual void compute(Device& device, const Place& at, Matrix<M> whole,
                       Vector<const kernels::UpdateScalars> scalars) = 0;
  virtual Descent descent(const HiddenMatrix& matrix, bool decays, double learning_rate) const = 0;

  Stack stack_of(const deck::ModelConfig& model, const OptimizerSetup& setup, const model::Section& section,
                 const std::vector<index_t>& local_layers) const;
  std::vector<Stack> stacks_of(const deck::Config& config, const OptimizerSetup& setup) const;
  index_t most(index_t MatrixLayout::*of) const;
  index_t max_gathered() const;
  index_t gemm_bytes(const deck::Config& config, const Arena& arena) const;
  void gather(Device& device, const Stack& stack);
  void compute_owned(Device& device, std::size_t stack, std::size_t layer,
                     Vector<const kernels::UpdateScalars> scalars);
  void broadcast(Device& device, const Stack& stack, std::size_t layer);
  Matrix<M> whole(const HiddenMatrix& m) const { return Matrix<M>(whole_.data() + m.at, m.rows, m.columns); }

  const char* region_;
  MatrixWork work_;
  deck::OptimizerConfig config_;
  comm::Group* tp_;
  nn::ParameterLayouts layouts_;
  std::vector<Stack> stacks_;
  std::unique_ptr<Optimizer<M>> adamw_;
  Vector<M> gathered_;  // units of all tensor-parallel ranks; shared by the stacks, as the next one
  Vector<M> whole_;
  Vector<std::byte> gemm_workspace_;  // of a host
};

/// Errors of decks whose layers do not have the same matrices. who: the optimizer.
void check_matrices(const deck::Config& config, deck::Findings& findings, const std::string& who);

}  // namespace nanotron::optim
