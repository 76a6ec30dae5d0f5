#pragma once

// Gradients all-reduced in fp16: half the bytes of fp32, three bits more than bf16. Each block of kernels::half_block
// elements is scaled by a power of two that all ranks agree on (kernels/reduction/scaled_half.hpp):
//
//   prepare(bucket)   all-reduce (max) of max |x| of its blocks
//   start(bucket)     after prepare of the next bucket, so that the maxima have arrived: all-reduce (sum) of the bucket
//
// A bucket is a whole number of blocks.

#include "nanotron/base/fp16.hpp"
#include "parallel/reducers/all_reduce/bucketed_all_reduce.hpp"

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
  // max |x| of the bucket's blocks; blocks are counted from the end of the section.
  Vector<M> largest(const Range& bucket) const;

  Vector<fp16> half_;                                                    // of the section
  Vector<M> largest_;                                                    // of its blocks
  std::vector<comm::Request> agreeing_ = std::vector<comm::Request>(2);  // maxima of the last two buckets
  std::size_t prepared_ = 0, used_ = 0;
};

}  // namespace nanotron::parallel
