#pragma once

// Gradients summed to the rank that updates with them (ZeRO, Rajbhandari et al. 2020): a unit is reduce-scattered over
// the shard group, and the piece all-reduced over the replicate group after the last micro-batch. 1-D parameters are
// all-reduced over the data-parallel group.

#include <vector>

#include "nanotron/parallel/reducers/gradient_reducer.hpp"

namespace nanotron::parallel {

/// What both do after the last micro-batch.
template <class T>
class ZeroReducer : public GradientReducer<T> {
 protected:
  using M = master_t<T>;
  ZeroReducer(const ReducerContext<T>& context, index_t micro_batches_of_unit);

  M* gradient_of(index_t unit) const;
  /// Sums a unit where backward left it; this rank's piece of the sum lies at its place in the unit.
  comm::Request start_reduce_scatter(index_t unit) const;
  void reduce_vectors();
  void reduce_over_replicates();
  /// times: a step scatters each unit.
  comm::StepTraffic zero_traffic(index_t times) const;

 private:
  std::vector<Range> pieces_;  // of the gradient buffer: this rank's sums of matrices
};

/// Stage 1: the gradient buffer is whole; a unit is summed in place once it is final.
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

  std::vector<comm::Request> running_;  // in the order in which they were started
  std::size_t started_ = 0, done_ = 0;
};

/// Stages 2 and 3: a unit's gradient lives in a slot from the first part backward adds to it until it is summed; after
/// each micro-batch this rank's piece is added to what it keeps.
template <class T>
class Zero23Reducer final : public ZeroReducer<T> {
 public:
  using M = master_t<T>;
  explicit Zero23Reducer(const ReducerContext<T>& context);

 private:
  struct Flight {
    index_t unit;
    comm::Request request;
  };
  void start_step() override;
  void before_first_use(index_t unit) override;
  void completed(index_t unit) override;
  void finish_step() override;
  comm::StepTraffic strategy_traffic() const override { return this->zero_traffic(this->micro_batches()); }
  void finish_first();

  std::vector<Flight> flights_;  // in the order in which they were started; a slot has at most one
};

}  // namespace nanotron::parallel
