#pragma once

// What a rank holds to train: the model with its memory, the optimizer, the gradient reducers, the tokens of a step.
// With a planning arena its construction computes the memory plan, with a real one it takes the memory of the run.

#include <memory>
#include <optional>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/model/layers/transformer.hpp"
#include "nanotron/nn/preference/pair_losses.hpp"
#include "nanotron/optim/optimizer.hpp"
#include "nanotron/optim/update_decision.hpp"
#include "nanotron/optim/weight_average.hpp"
#include "nanotron/parallel/reducers/reducers.hpp"
#include "nanotron/trainer/state/step_settings.hpp"
#include "nanotron/trainer/state/token_buffer.hpp"

namespace nanotron::trainer {

/// What the deck shards over data-parallel ranks.
model::Sharding sharding_of(const deck::Config& config, comm::ProcessGrid& grid);

/// The one description of this rank's model, for runs, plans and benchmarks.
model::TransformerSetup transformer_setup(const deck::Config& config, comm::ProcessGrid& grid);

/// nn::LossRows::auxiliary of a step, and memory for their sum over ranks: (1) each. All empty where training minimises
/// the loss alone.
struct AuxiliaryRows {
  AuxiliaryRows(Arena& arena, index_t tokens);

  Vector<double> rows;
  Vector<kernels::ExactSum> sum;
  Vector<std::int64_t> top_place;
};

/// Of the appended layers: inputs and targets of each, (micro-batches, layers, tokens of a micro-batch) like their
/// losses; how much the sum of the losses of all of them counts in what training minimises. All empty without.
struct LaterRows {
  LaterRows(const deck::Config& config, index_t appended_here, Arena& arena, index_t tokens);

  Vector<std::int32_t> inputs, targets;
  AuxiliaryRows losses;  // on all ranks
  double weight = 0.0;
};

template <class T>
struct TrainingState {
  using M = master_t<T>;
  /// config is resolved; the grid may be a planned one. All but the arena must outlive it.
  TrainingState(const deck::Config& config, comm::ProcessGrid& grid, Device& device, Arena& arena);

  /// The weights of run%seed; all else stays.
  void initialise(std::int64_t seed);
  /// Queues the update of the weights, and of what follows them, if `decision` carries it out; with states in host
  /// memory a part of it: the rest goes beside the next forward. The compute weights follow with refresh_weights().
  void queue_update(Device& device, double learning_rate);
  void refresh_weights() { model.refresh_after_update(updates_beside_forward ? rest_.get() : nullptr); }
  /// Call it before each computation of a batch, so that equal ones communicate alike (UnitWeights::forget).
  void forget_gathered_weights() {
    updates_beside_forward ? model.gather_weights_in_use() : model.forget_gathered_weights();
  }
  /// Call it before anything but forward and backward reads or writes weights and states, on the device or the host.
  void finish_update(Device& device);
  /// Begins a step of the reducers: now; or, where the rest of an update reads gradients, with the first
  /// begin_backward().
  void begin_step();
  void begin_backward();  // before each backward
  /// The compute weights become those to use, or those for gradients again; nothing where they are the same.
  /// Collective over the world.
  void load_weights(Device& device, optim::WeightsFor use);
  /// The state that the weights to use are; nothing where they are the master weights.
  std::optional<optim::Moment<M>> weights_to_use() const;
  /// The states of the optimizer and those that follow the weights, as a checkpoint stores them.
  std::vector<optim::Moment<M>> moments() const;

  /// Micro-batches, or parts of them (deck/micro_batch.hpp), of the loaded global batch, and of the largest.
  index_t micro_batches() const { return micro_batches_; }
  index_t max_micro_batches() const { return static_cast<index_t>(inputs.size()) / model.tokens(); }
  void set_loaded(const LoadedBatch& batch) {
    micro_batches_ = batch.micro_batches, step_tokens_ = batch.tokens;
    documents_ = batch.documents;
    starts_on_host_ = batch.document_starts;
    samples_ = batch.sequences;
  }
  Vector<const std::int32_t> inputs_of(index_t micro_batch) const { return part(inputs, micro_batch); }
  Vector<const std::int32_t> targets_of(index_t micro_batch) const { return part(targets, micro_batch); }
  nn::Packing packing_of(index_t micro_batch) const;
  nn::LossRows loss_rows_of(index_t micro_batch) const {
    nn::LossRows rows(part(loss_rows, micro_batch), part(auxiliary.rows, micro_batch), pairs.of(micro_batch));
    if (draws_targets) rows.drawn = {part(targets, micro_batch), shard_, {seed_, packing_of(micro_batch).samples}};
    return rows;
  }
  model::LaterTokens later_tokens_of(index_t micro_batch) const {
    return {part(later.inputs, micro_batch), part(later.targets, micro_batch), part(later.losses.rows, micro_batch),
            later.weight};
  }
  /// Loss rows of all micro-batches that are loaded.
  Vector<double> loaded_loss_rows() const { return Vector<double>(loss_rows.data(), micro_batches_ * model.tokens()); }

  model::Sharding sharding;
  nn::ScoreMaxima score_maxima;
  std::unique_ptr<nn::ReceivedRows> received_rows;
  model::Transformer<T> model;
  std::unique_ptr<optim::Optimizer<M>> optimizer;
  std::unique_ptr<optim::WeightRule<M>> weight_rule;  // null: none
  optim::WeightAverage<M> average;
  parallel::Reducers<T> reducers;
  // Tokens of a step, the largest, in sample order: (micro-batches, sequences, tokens of the sequence on this rank).
  Vector<std::int32_t> inputs, targets;
  Vector<double> loss_rows;
  AuxiliaryRows auxiliary;
  LaterRows later;
  Vector<std::int32_t> document_starts;  // of whole sequences; empty without a document mask
  Vector<std::int32_t> sequence_tokens;  // of each whole sequence; empty without experts
  std::vector<AuxiliaryRows> rewards;    // of pairs: chosen, rejected, their comparison; empty where sequences are none
  nn::PairLosses pairs;
  optim::UpdateDecision<M> decision;    // last: the size of its last vector may differ between ranks of a group
  bool updates_beside_forward = false;  // optimizer%state_memory = 'host'
  bool draws_targets = false;           // the loss rows are of targets drawn from the model, which overwrite these

 private:
  class Rest;
  std::unique_ptr<model::RestOfUpdate> rest_;  // null where nothing goes beside forward
  bool begins_with_backward_ = false;

  template <class U>
  Vector<U> part(const Vector<U>& of_step, index_t micro_batch) const {
    const index_t size = static_cast<index_t>(of_step.size()) / max_micro_batches();
    return Vector<U>(of_step.data() + micro_batch * size, size);
  }
  index_t micro_batches_ = max_micro_batches();
  std::uint64_t seed_;
  SequenceShard shard_;                           // of each sequence
  index_t step_tokens_ = 1, sequences_ = 1;       // sequences: of a micro-batch
  SampleNumbers samples_{.first = 0};             // in a plan as in training
  std::span<const index_t> documents_;            // of each micro-batch; in memory of the TokenBuffer
  std::span<const std::int32_t> starts_on_host_;  // document_starts; the same
};

}  // namespace nanotron::trainer
