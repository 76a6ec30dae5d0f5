#pragma once

#include "parallel/reducers/all_reduce/bucketed_all_reduce.hpp"

namespace nanotron::parallel {

/// All-reduces buckets rounded to bf16: half the bytes of fp32. On one node sums are in float, rounded once.
template <class T>
class Bf16Reducer final : public BucketedAllReduce<T> {
 public:
  explicit Bf16Reducer(const ReducerContext<T>& context);

 private:
  Vector<bf16> rounded(const Range& bucket) const {
    return Vector<bf16>(rounded_.data() + bucket.begin, bucket.size());
  }
  comm::Request start(const Range& bucket) override;
  void received(const Range& bucket) override;
  comm::StepTraffic strategy_traffic() const override;

  Vector<bf16> rounded_;  // of the section
};

}  // namespace nanotron::parallel
