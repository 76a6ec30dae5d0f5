#pragma once

// ZeRO: the gradient of each unit is reduce-scattered over the shard group, so that each rank gets the shard it updates
// (ZeRO, Rajbhandari et al. 2020). A unit is reduce-scattered over the shard group; after the last micro-batch each
// shard is all-reduced over the replicate group, and 1-D parameters over the data-parallel group.

#include <vector>

#include "nanotron/parallel/reducers/gradient_reducer.hpp"

namespace nanotron::parallel {

/// The collectives of both reducers.
template <class T>
class ZeroReducer : public GradientReducer<T> {
 protected:
  using M = master_t<T>;
  ZeroReducer(const ReducerContext<T>& context, index_t micro_batches_of_unit);

  M* gradient_of(index_t unit) const;
  /// In place, where backward accumulated the unit; this rank's shard is stored at its offset in the unit.
  comm::Request start_reduce_scatter(index_t unit) const;
  void reduce_1d();
  void reduce_over_replicates();
  /// times: reduce-scatters of each unit per step.
  comm::StepTraffic zero_traffic(index_t times) const;

 private:
  std::vector<Range> shards_;  // of the gradient buffer: this rank's shards of 2-D parameters
};

/// Stage 1: the gradient buffer is not sharded; a unit is reduce-scattered in place once it is final.
template <class T>
class Zero1Reducer final : public ZeroReducer<T> {
 public:
  using M = master_t<T>;
  explicit Zero1Reducer(const ReducerContext<T>& context);

 private:
  void start_step() override;
  void completed(index_t unit) override;
  void finish_step() override;
  comm::StepTraffic strategy_traffic() const override { return this->zero_traffic(1); }
  void start(index_t unit) { running_[started_++] = this->start_reduce_scatter(unit); }

  std::vector<comm::Request> running_;  // in the order of their start
  std::size_t started_ = 0, done_ = 0;
};

/// Stages 2 and 3: a slot stores a unit's gradient from the first backward that adds to it to the end of its
/// reduce-scatter; per micro-batch the result is added to this rank's shard.
template <class T>
class Zero23Reducer final : public ZeroReducer<T> {
 public:
  using M = master_t<T>;
  explicit Zero23Reducer(const ReducerContext<T>& context);

 private:
  struct PendingReduction {
    index_t unit;
    comm::Request request;
  };
  void start_step() override;
  void before_first_use(index_t unit) override;
  void completed(index_t unit) override;
  void finish_step() override;
  comm::StepTraffic strategy_traffic() const override { return this->zero_traffic(this->micro_batches()); }
  void finish_first();

  std::vector<PendingReduction> pending_;  // in the order of their start; at most one per slot
};

}  // namespace nanotron::parallel
