#pragma once

// Gradients of the 1-D parameters of a section in LayoutInvariantReducer. They are few: those of each sequence are
// kept, and added in the order of all gradients after the last micro-batch. backward_input and backward_weight of one
// micro-batch both add to them, with other micro-batches in between: each moves its contribution to the buffer of its
// micro-batch.

#include <vector>

#include "nanotron/parallel/reducers/reducers.hpp"
#include "parallel/reducers/layout_invariant/sequence_sums.hpp"
#include "parallel/reducers/strategies.hpp"

namespace nanotron::parallel {

template <class T>
class Gradients1d {
 public:
  using M = master_t<T>;
  /// samples_of_shard: micro-batches of a batch shard. sequences: which a micro-batch has here, each with a gradient.
  Gradients1d(const ReducerContext<T>& context, index_t samples_of_shard, int sequences, const SequenceSums& sums);

  void start_step();
  /// After backward of a unit, by number.
  void set_apart(index_t number, index_t micro_batch);
  /// Collective: the sum over all micro-batches and ranks, to where the optimizer reads it.
  void sum(const model::PartialGradients<T>& partial, index_t micro_batches);
  comm::StepTraffic traffic_of_round() const;

 private:
  // Where backward accumulates them; the kept ones of a sequence; those of a batch shard.
  Vector<M> gradient_of(const Range& flat, index_t sequence) const;
  Vector<M> kept(index_t micro_batch, index_t sequence) const;
  Vector<M> batch_shard(index_t sequence) const;

  const model::Transformer<T>* model_;
  comm::Group* data_;
  Device* device_;
  Range flat_;  // of the parameters
  index_t samples_of_shard_;
  int sequences_;
  SequenceSums sums_;
  std::vector<std::vector<Range>> ranges_of_;  // by number: its 1-D parameters in the flat space

  Vector<M> kept_;         // (micro-batches, sequences, parameters)
  Vector<M> batch_shard_;  // (sequences, parameters): the sums of one batch shard
  Vector<M> sum_;          // (parameters): of all
  Vector<M> gathered_;     // (ranks, sequences, parameters)
};

}  // namespace nanotron::parallel
