#pragma once

// Gradient reduction over the data-parallel group in an order that does not depend on the grid
// (precision%reproducible = 'layout'). The global batch is split into deck::SumShards::batch shards of neighbouring
// sequences. dp rank i mod d computes shard i in round i / d, one sequence per micro-batch, and adds up their gradients
// in order: g_i. Then
//
//   gradient = ((g_0 + g_1) + g_2) + ...        each g_i: a binary tree over the c cp ranks (tensor/sum_order.hpp)
//
// After a round, an all-to-all gives every rank its part of all ranks' gradients of a unit (with ZeRO a part of its
// shard); it adds them to its sum. After the last round the parts are all-gathered over the data-parallel group, with
// ZeRO over the replicate group.
//
// 1-D parameters are few: the gradients of each sequence are kept, and added in the same order after the last
// micro-batch. backward_input and backward_weight of one micro-batch both add to them, with other micro-batches in
// between: each moves its contribution to the buffer of its micro-batch.
//
// Experts that receive tokens of several sequences at once have one gradient for each; they are added one by one.
//
// Tied weights have two sums, H over the head's g_i and E over the embedding's, and then H + E: the order in which a
// pipeline adds them, where first and last stage are on different ranks.

#include "nanotron/parallel/reducers/gradient_reducer.hpp"

namespace nanotron::parallel {

template <class T>
class LayoutInvariantReducer final : public GradientReducer<T> {
 public:
  using M = master_t<T>;
  explicit LayoutInvariantReducer(const ReducerContext<T>& context);

 private:
  // number: of a unit, or table.units.size() for the tied head.
  void start_step() override;
  void before_use(index_t number) override;
  void before_first_use(index_t number) override;
  void after_use(index_t number) override;
  void after_inputs(index_t number) override;
  void completed(index_t number) override;
  void complete_1d() override {}
  void finish_step() override;
  comm::StepTraffic traffic_1d() const override;
  comm::StepTraffic strategy_traffic() const override;

  index_t unit_of(index_t number) const { return this->is_head(number) ? this->table().embedding_unit() : number; }
  // Gradients of a flat range: where backward accumulates them, for one of sequences_; this rank's part of the sum.
  Vector<M> gradient_of(const Range& flat, index_t sequence = 0) const;
  Vector<M> kept(const Range& flat) const;
  Vector<M> kept_of(index_t number, const Range& flat) const;
  Vector<M> gradients_1d(index_t micro_batch) const;
  Range part_of_rank(index_t number, int rank) const;

  void set_1d_apart(index_t number, index_t micro_batch);
  void add_round(index_t number);
  void add_in_order(const Vector<M>& parts, const Vector<M>& sum);
  void sum_1d();
  void add_head();
  void gather_parts();

  index_t samples_of_shard_;
  index_t rounds_;
  int sequences_;  // gradients of a unit, stored one after the other
  int context_;    // consecutive ranks that share a sequence
  bool tied_;      // head and embedding are one unit here

  Vector<M> send_, receive_;           // one unit each
  Vector<M> gradients_1d_;             // (sequences of this rank, 1-D parameters)
  Vector<M> batch_shard_1d_, sum_1d_;  // 1-D parameters: the sum of one batch shard; of all
  Vector<M> gathered_;                 // (ranks, 1-D parameters)
  Vector<M> head_sum_;                 // tied weights: this rank's shard of H
  Vector<M> other_part_;               // tied weights: gradient of head or embedding, whichever is not in the unit

  index_t in_place_ = 0;                       // tied weights: the number whose gradient is stored in the unit
  std::vector<index_t> uses_, inputs_;         // by number: calls of after_use and after_inputs in this step
  std::vector<std::vector<Range>> ranges_of_;  // by number: its 1-D parameters in the flat space
  std::vector<std::size_t> send_counts_;
};

}  // namespace nanotron::parallel
