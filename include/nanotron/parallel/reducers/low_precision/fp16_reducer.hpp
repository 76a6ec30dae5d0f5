#pragma once

// Gradients in fp16 on their way, half the bytes and three bits more than bf16: each block of kernels::half_block
// elements is scaled by a power of two that all ranks agree on, see kernels/reduction/scaled_half.hpp. The largest
// numbers of a bucket's blocks are sent with it, and the bucket itself when the next one is: so they have come when they
// are needed. Buckets end where blocks do.

#include "nanotron/base/fp16.hpp"
#include "nanotron/parallel/reducers/all_reduce/bucketed_all_reduce.hpp"

namespace nanotron::parallel {

template <class T>
class Fp16Reducer final : public BucketedAllReduce<T> {
 public:
  using M = master_t<T>;
  explicit Fp16Reducer(const ReducerContext<T>& context);

 private:
  index_t lag() const override { return 1; }
  void prepare(const Range& bucket) override;
  comm::Request start(const Range& bucket) override;
  void received(const Range& bucket) override;
  comm::StepTraffic strategy_traffic() const override;

  Vector<fp16> scaled(const Range& bucket) const { return Vector<fp16>(half_.data() + bucket.begin, bucket.size()); }
  // Of the bucket's blocks; blocks are counted from the end of the section.
  Vector<M> largest(const Range& bucket) const;

  Vector<fp16> half_;  // of the section
  Vector<M> largest_;  // of its blocks
  std::vector<comm::Request> agreeing_ = std::vector<comm::Request>(2);  // of the next bucket and the one after it
  std::size_t prepared_ = 0, used_ = 0;
};

}  // namespace nanotron::parallel
