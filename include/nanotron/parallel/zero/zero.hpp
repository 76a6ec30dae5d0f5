#pragma once

// Gradients summed to the rank that updates with them (ZeRO, Rajbhandari et al. 2020): a unit is reduce-scattered
// over the shard group, and the piece all-reduced over the copies behind the last micro-batch. Vectors are
// all-reduced over all replicas.

#include <vector>

#include "nanotron/parallel/reducers/gradient_sum.hpp"

namespace nanotron::parallel {

/// What both do behind the last micro-batch.
template <class T>
class ShardedSum : public GradientSum<T> {
 protected:
  using M = master_t<T>;
  ShardedSum(model::Transformer<T>& model, const model::Section& section, const model::Sharding& sharding,
             const ReplicaGroups& groups, Device& device, const SumRule& rule, index_t micro_batches);
  /// Sums start at zero, where they lie in the buffer.
  void clear(const nn::Placement& place);

  const model::Unit& unit(index_t u) const { return model_->table().units[static_cast<std::size_t>(u)]; }
  M* gradient_of(index_t u) const;
  /// Sums a unit where backward left it; this rank's piece of the sum lies at its place in the unit.
  comm::Request start_reduce_scatter(index_t u) const;
  void sum_vectors();
  void sum_copies();

  model::Transformer<T>* model_;
  model::Section section_;
  model::Sharding sharding_;
  ReplicaGroups groups_;
  Device* device_;
  bool overlap_;
  UnitCount count_;
  std::vector<Range> pieces_;  // of the gradient buffer: this rank's sums of matrices
};

/// Stage 1: the gradient buffer is whole; a unit is summed in place once it is final.
template <class T>
class ShardedInPlace final : public ShardedSum<T> {
 public:
  using M = master_t<T>;
  ShardedInPlace(model::Transformer<T>& model, const model::Section& section, const model::Sharding& sharding,
                 const ReplicaGroups& groups, Device& device, const SumRule& rule);
  void begin_step() override;
  void begin(index_t) override {}
  void end(index_t unit) override;
  void finish() override;

 private:
  void start(index_t unit);

  std::vector<comm::Request> running_;  // in the order in which they were started
  std::size_t started_ = 0;
  std::size_t done_ = 0;
};

/// Stages 2 and 3: a unit's gradient lives in a slot from the first part backward adds to it until it is summed;
/// after each micro-batch this rank's piece is added to what it keeps.
template <class T>
class ShardedByUnit final : public ShardedSum<T> {
 public:
  using M = master_t<T>;
  ShardedByUnit(model::Transformer<T>& model, const model::Section& section, const model::Sharding& sharding,
                const ReplicaGroups& groups, Device& device, const SumRule& rule);
  void begin_step() override;
  void begin(index_t unit) override;
  void end(index_t unit) override;
  void finish() override;

 private:
  struct Flight {
    index_t unit;
    comm::Request request;
  };
  void land_first();

  std::vector<Flight> flights_;  // in the order in which they were started; a slot has at most one
};

}  // namespace nanotron::parallel
