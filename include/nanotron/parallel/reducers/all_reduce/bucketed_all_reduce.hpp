#pragma once

// Nothing sharded: the flat gradient buffer is cut into buckets, and a bucket is all-reduced once everything in it is
// final. Backward completes the buffer from its end to its beginning, so "final" is one number: all after it is.

#include <vector>

#include "nanotron/parallel/reducers/gradient_reducer.hpp"

namespace nanotron::parallel {

/// When buckets are sent and received; what is sent of one is the derived class's.
template <class T>
class BucketedAllReduce : public GradientReducer<T> {
 public:
  using M = master_t<T>;

 protected:
  explicit BucketedAllReduce(const ReducerContext<T>& context);
  /// Ranges of buckets count from the beginning of the section.
  Vector<M> part(const Range& bucket) const;

 private:
  void start_step() override;
  void completed(index_t unit) override;
  void finish_step() override;

  /// A bucket is final; it is sent when as many more as lag() are, or at the end.
  virtual index_t lag() const { return 0; }
  virtual void prepare(const Range&) {}
  virtual comm::Request start(const Range& bucket) = 0;
  /// Its request is complete.
  virtual void received(const Range& bucket) = 0;

  Range bucket(std::size_t number) const;
  void prepare_next();
  void start_next();
  void send_final();

  double megabytes_;
  index_t bucket_;                      // elements
  std::vector<char> is_final_;          // by unit; a pipeline ends them in any order
  std::size_t not_final_;               // of the section's units, those before this have one that is not
  std::vector<comm::Request> running_;  // by bucket, from the end of the buffer
  std::size_t prepared_ = 0, started_ = 0, done_ = 0;
};

/// In the master type, in place.
template <class T>
class AllReduceReducer final : public BucketedAllReduce<T> {
 public:
  using M = master_t<T>;
  explicit AllReduceReducer(const ReducerContext<T>& context) : BucketedAllReduce<T>(context) {}

 private:
  comm::Request start(const Range& bucket) override;
  void received(const Range&) override {}
  comm::StepTraffic strategy_traffic() const override;
};

}  // namespace nanotron::parallel
