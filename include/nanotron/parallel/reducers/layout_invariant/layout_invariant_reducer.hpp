#pragma once

// The sum over data-parallel ranks in an order that does not follow the grid (precision%reproducible = 'layout'). The
// global batch is cut into deck::SumShards::batch shards of neighbouring sequences, which are dealt to the dp ranks in
// turn: shard i to rank i mod dp, in round i / dp. A rank adds up its sequences of a shard, each a micro-batch, one after
// the other; then, round by round, the sums g_i of the shards are added in their order:
//
//   sum = ((g_0 + g_1) + g_2) + ...        g_i: a binary tree over the cp ranks (tensor/sum_order.hpp)
//
// After a round every rank gets its piece of the others' gradients of a unit (all-to-all) and adds them to what it keeps;
// after the last round those who shard nothing gather the pieces. 1-D parameters are few: those of each sequence are
// kept, and summed in the same order after the last micro-batch, sequences of a shard first. Backward in two parts adds
// to them in both, of other micro-batches in between: each part sets its own apart.
//
// Of experts over several sequences' ranks a rank has the gradient of each of these, and g_i one by one.
//
// Weights that are head and embedding are summed twice, H = sum of the heads' h_i and E of the embeddings' e_i, and
// then H + E: the order that two stages of a pipeline have.

#include "nanotron/parallel/reducers/gradient_reducer.hpp"

namespace nanotron::parallel {

template <class T>
class LayoutInvariantReducer final : public GradientReducer<T> {
 public:
  using M = master_t<T>;
  explicit LayoutInvariantReducer(const ReducerContext<T>& context);

 private:
  // number: of a unit, or table.units.size() of the head whose unit is the embedding's too.
  void start_step() override;
  void before_use(index_t number) override;
  void before_first_use(index_t number) override;
  void after_use(index_t number) override;
  void after_inputs(index_t number) override;
  void completed(index_t number) override;
  void complete_vectors() override {}
  void finish_step() override;
  comm::StepTraffic vectors_traffic() const override;
  comm::StepTraffic strategy_traffic() const override;

  index_t unit_of(index_t number) const { return this->is_head(number) ? this->table().embedding_unit() : number; }
  // A unit or 1-D parameters: where backward leaves them, of one of several sequences; what this rank keeps of the sum.
  Vector<M> gradient_of(const Range& flat, index_t sequence = 0) const;
  Vector<M> kept(const Range& flat) const;
  Vector<M> kept_of(index_t number, const Range& flat) const;
  Vector<M> vectors_of(index_t micro_batch) const;
  Range piece_of_rank(index_t number, int rank) const;

  void set_vectors_apart(index_t number, index_t micro_batch);
  void add_round(index_t number);
  void add_in_order(const Vector<M>& parts, const Vector<M>& sum);
  void sum_vectors();
  void add_head();
  void gather_pieces();

  index_t samples_of_shard_;
  index_t rounds_;
  int sequences_;  // gradients of a unit, one after the other
  int context_;    // ranks with parts of a sequence's gradient, neighbours
  bool tied_;      // head and embedding are one unit here

  Vector<M> send_, receive_;             // one unit each
  Vector<M> vectors_;                    // (sequences of this rank, 1-D parameters)
  Vector<M> vector_shard_, vector_sum_;
  Vector<M> gathered_;                   // (ranks, 1-D parameters)
  Vector<M> head_sum_;                   // piece of tied weights: the head's part of the sum
  Vector<M> other_part_;                 // of these, of several sequences: the gradient of head or embedding, whichever waits

  index_t in_place_ = 0;                        // of these two, the one whose gradient is in the unit's place
  std::vector<index_t> uses_, inputs_;          // of each number in this step: micro-batches ended, of inputs alone
  std::vector<std::vector<Range>> ranges_of_;   // of each number: its 1-D parameters in the flat space
  std::vector<std::size_t> send_counts_;
};

}  // namespace nanotron::parallel
