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

#include "nanotron/parallel/gradient_sum.hpp"

namespace nanotron::parallel {

template <class T>
class OrderedSum final : public GradientSum<T> {
 public:
  using M = master_t<T>;

  OrderedSum(model::Transformer<T>& model, const model::Sharding& sharding, const OrderedMemory<M>& memory,
             const ReplicaGroups& groups, Device& device, const SumRule& rule);

  void begin_step() override;
  void begin(index_t unit) override;
  void end(index_t unit) override;
  void end_inputs(index_t unit) override;
  void finish() override;

 private:
  // The unit or vectors of one part of the flat space.
  const model::Unit& unit(index_t u) const { return model_->table().units[static_cast<std::size_t>(u)]; }
  Vector<M> gradient(const Range& flat) const;
  Vector<M> kept(const Range& flat) const;
  Vector<M> vectors_of(index_t micro_batch) const;
  Range piece_of_replica(index_t u, int replica) const;

  void set_vectors_apart(index_t u, index_t micro_batch);
  void begin_matrices(index_t u);
  void end_matrices(index_t u);
  void add_round(index_t u);
  void add_in_order(const Vector<M>& parts, const Vector<M>& sum);
  void sum_vectors();
  void hand_out();

  model::Transformer<T>* model_;
  model::Sharding sharding_;
  OrderedMemory<M> memory_;
  ReplicaGroups groups_;
  Device* device_;
  index_t samples_, samples_of_shard_;
  int context_;  // cp ranks of a sequence, neighbours among the replicas
  UnitCount count_;                          // of a round
  std::vector<index_t> uses_, inputs_;       // of each unit in this step: whole or of its weights, of its inputs
  std::vector<std::vector<Range>> vectors_;  // of each unit, in the flat space
  std::vector<std::size_t> send_counts_;
};

}  // namespace nanotron::parallel
