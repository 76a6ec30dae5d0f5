#pragma once

// zero_stage = 0: the flat gradient buffer is split into buckets, and a bucket is all-reduced once all of it is final.
// Backward completes the buffer from its end to its beginning, so "final" is one number: everything after it is final.

#include <vector>

#include "nanotron/parallel/reducers/gradient_reducer.hpp"

namespace nanotron::parallel {

/// Decides when buckets are all-reduced; the derived class decides what is sent.
template <class T>
class BucketedAllReduce : public GradientReducer<T> {
 public:
  using M = master_t<T>;

 protected:
  explicit BucketedAllReduce(const ReducerContext<T>& context);
  /// The gradients of a bucket, whose range counts from the beginning of the section.
  Vector<M> part(const Range& bucket) const;

 private:
  void start_step() override;
  void completed(index_t unit) override;
  void finish_step() override;

  /// A final bucket is started once lag() more buckets are prepared, or in finish_step().
  virtual index_t lag() const { return 0; }
  virtual void prepare(const Range&) {}
  virtual comm::Request start(const Range& bucket) = 0;
  /// The bucket's request is complete.
  virtual void received(const Range& bucket) = 0;

  Range bucket(std::size_t number) const;
  void prepare_next();
  void start_next();
  void send_final();

  double megabytes_;
  index_t bucket_;                      // elements
  std::vector<char> is_final_;          // by unit; with a pipeline they complete in any order
  std::size_t not_final_;               // units of the section from this one on are all final
  std::vector<comm::Request> running_;  // by bucket, from the end of the buffer
  std::size_t prepared_ = 0, started_ = 0, done_ = 0;
};

}  // namespace nanotron::parallel
