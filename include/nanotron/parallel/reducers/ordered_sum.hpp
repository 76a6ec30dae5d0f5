#pragma once

// The sum over replicas in an order that does not follow the grid (precision%reproducible = 'layout'). The global batch
// is cut into deck::SumShards::batch shards of neighbouring sequences, which are dealt to the dp ranks in turn: shard i
// to rank i mod dp, in round i / dp. A rank adds up its sequences of a shard, each a micro-batch, one after the other;
// then, round by round, the sums g_i of the shards are added in their order:
//
//   sum = ((g_0 + g_1) + g_2) + ...        g_i: a binary tree over the cp ranks (tensor/sum_order.hpp)
//
// After a round every replica gets its piece of the others' gradients of a unit (all-to-all) and adds them to what it
// keeps; behind the last round those who shard nothing hand the pieces out (all-gather). Vectors are few: those of each
// sequence are kept, and summed in the same order behind the last micro-batch, sequences of a shard first. Backward in two
// parts adds to vectors in both, of other micro-batches in between: each part sets its own apart.
//
// Of experts over several sequences' ranks a replica has the gradient of each of these, and g_i one by one.
//
// Weights that are head and embedding are summed twice, H = sum of the heads' h_i and E of the embeddings' e_i, and
// then H + E: the order that two stages of a pipeline have.

#include "nanotron/parallel/reducers/gradient_sum.hpp"

namespace nanotron::parallel {

template <class T>
class OrderedSum final : public GradientSum<T> {
 public:
  using M = master_t<T>;

  OrderedSum(model::Transformer<T>& model, const model::Section& section, const model::Sharding& sharding,
             const OrderedMemory<M>& memory, const ReplicaGroups& groups, Device& device, const SumRule& rule);

  void begin_step() override;
  void begin(index_t unit) override;
  void end(index_t unit) override;
  void begin_head(index_t unit) override;
  void end_head(index_t unit) override;
  void end_inputs(index_t unit) override;
  void finish() override;

 private:
  // A sum of its own: of a unit, or of the head whose unit is the embedding's too.
  index_t head_of(index_t unit) const { return tied_ ? units() : unit; }
  index_t units() const { return static_cast<index_t>(model_->table().units.size()); }
  index_t unit_of(index_t sum) const { return sum == units() ? model_->table().embedding_unit() : sum; }
  const model::Unit& unit(index_t sum) const { return model_->table().units[static_cast<std::size_t>(unit_of(sum))]; }
  // The unit or vectors of one part of the flat space.
  Vector<M> gradient(const Range& flat, index_t sequence = 0) const;
  Vector<M> kept(const Range& flat) const;
  Vector<M> kept_of(index_t sum, const Range& flat) const;
  Vector<M> vectors_of(index_t micro_batch) const;
  Range piece_of_replica(index_t u, int replica) const;

  void set_vectors_apart(index_t sum, index_t micro_batch);
  void begin_sum(index_t sum);
  void end_sum(index_t sum);
  void add_round(index_t sum);
  void add_in_order(const Vector<M>& parts, const Vector<M>& sum);
  void sum_vectors();
  void add_head();
  void hand_out();

  model::Transformer<T>* model_;
  model::Section section_;
  model::Sharding sharding_;
  OrderedMemory<M> memory_;
  ReplicaGroups groups_;
  Device* device_;
  index_t samples_, samples_of_shard_;
  int context_;    // replicas with parts of a sequence's gradient, neighbours
  int sequences_;  // gradients of a unit, one behind the other
  bool tied_;                                // head and embedding are one unit here
  index_t in_place_ = 0;                     // of these two sums, the one whose gradient is in the unit's place
  std::vector<index_t> uses_, inputs_;       // of each sum in this step: micro-batches begun, of inputs alone
  std::vector<std::vector<Range>> vectors_;  // of each sum, in the flat space
  std::vector<std::size_t> send_counts_;
};

}  // namespace nanotron::parallel
