#pragma once

// The sum of gradients over the ranks that hold the same parameters. Whoever drives backward says when it is about
// to add to the gradients of a unit and when it has; what is complete is sent off while backward goes on (Li et al.,
// "PyTorch Distributed", VLDB 2020). Where the sum ends up is the strategy's: model::ParameterPlaces::reduced.

#include <memory>

#include "nanotron/model/transformer.hpp"
#include "nanotron/parallel/reducers/sum_memory.hpp"

namespace nanotron::parallel {

/// The ranks that hold the same parameters, cut into shard groups. Ranks at one place of each hold copies.
struct ReplicaGroups {
  comm::Group& replicas;  // all of them
  comm::Group& shards;    // those that share one replica
  comm::Group& copies;    // those with the same piece, one of each shard group
};

struct SumRule {
  double megabytes = 25.0;      // MiB of one bucket, where nothing is sharded
  bool overlap = true;          // false: nothing is on its way while backward computes
  index_t micro_batches = 1;    // of a step
  index_t micro_batches_of_shard = 1;  // of OrderedSum: neighbouring sequences that are added first
  int context = 1;                     // of OrderedSum: replicas that hold parts of a sequence's gradient
  int sequences = 1;                   // of OrderedSum: gradients of one sequence each, on every replica
  deck::Compression compression = deck::Compression::none;
  deck::GradientRule rule = deck::GradientRule::sum;
};

/// Every function is collective over the replicas; units are told in the order of backward.
template <class T>
class GradientSum {
 public:
  virtual ~GradientSum() = default;

  /// Before the first micro-batch: sums start at zero.
  virtual void begin_step() = 0;
  /// Backward is about to add to the gradient of a unit, and has added: Unit::uses times a micro-batch.
  virtual void begin(index_t unit) = 0;
  virtual void end(index_t unit) = 0;
  /// The same of what the output head adds to its unit, which may be the embedding's too.
  virtual void begin_head(index_t unit) { begin(unit); }
  virtual void end_head(index_t unit) { end(unit); }
  /// Backward in two parts has added to the norms of a layer; its weights are begun and ended later, micro-batches in
  /// the same order.
  virtual void end_inputs(index_t) {}
  /// Behind the last micro-batch: returns when the sums are there (on a GPU: when work queued afterwards sees them).
  virtual void finish() = 0;

  /// The sums were not finite and are not used: what is carried from step to step starts anew.
  virtual void forget() {}

  /// Host seconds spent waiting, since construction: communication that was not hidden.
  double exposed_seconds() const { return exposed_seconds_; }

 protected:
  double exposed_seconds_ = 0.0;
};

/// When the gradient of each unit is complete.
class UnitCount {
 public:
  UnitCount(const model::ParameterTable& table, index_t micro_batches);
  /// Nothing has been added yet.
  bool is_fresh(index_t unit) const { return added_[static_cast<std::size_t>(unit)] == 0; }
  /// One part more; true with the last one, and the count starts again.
  bool add(index_t unit);

 private:
  std::vector<index_t> wanted_, added_;
};

/// The strategy of a stage; where there are experts, one for these and one for the rest. The units told are those
/// without experts: a layer's stands for its experts too. The model, all memory and the groups must outlive it.
template <class T>
std::unique_ptr<GradientSum<T>> make_gradient_sum(const model::Sharding& sharding, model::Transformer<T>& model,
                                                  const SumMemory<master_t<T>>& memory, const ReplicaGroups& groups,
                                                  const ReplicaGroups& experts, Device& device, const SumRule& rule);

}  // namespace nanotron::parallel
