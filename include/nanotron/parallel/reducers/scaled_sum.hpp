#pragma once

// Gradients in fp16 on their way, half the bytes and three bits more than bf16: each block of kernels::half_block
// elements is scaled by a power of two that all replicas agree on, see kernels/reduction/scaled_half.hpp. The largest numbers of
// a bucket's blocks are sent off with it, and the bucket itself when the next one is: so they have come when they are
// needed. Buckets end where blocks do.

#include <vector>

#include "nanotron/parallel/reducers/data_parallel.hpp"

namespace nanotron::parallel {

template <class T>
class ScaledSum final : public BucketedSum<T> {
 public:
  using M = master_t<T>;
  /// half: as many elements as the section's gradient has; largest: as many as it has blocks.
  ScaledSum(model::Transformer<T>& model, const model::Section& section, comm::Group& replicas, Device& device,
            const SumRule& rule, Vector<fp16> half, Vector<M> largest)
      : BucketedSum<T>(model, section, replicas, device, rule), half_(half), largest_(largest) {}

 private:
  index_t lag() const override { return 1; }
  void prepare(const Range& bucket) override;
  comm::Request start(const Range& bucket) override;
  void land(const Range& bucket) override;

  Vector<fp16> part(const Range& bucket) const { return Vector<fp16>(half_.data() + bucket.begin, bucket.size()); }
  // Of the bucket's blocks; blocks are counted from the end of the section.
  Vector<M> largest(const Range& bucket) const;

  Vector<fp16> half_;
  Vector<M> largest_;
  std::vector<comm::Request> agreeing_ = std::vector<comm::Request>(2);  // of the next bucket and the one behind it
  std::size_t prepared_ = 0, used_ = 0;
};

}  // namespace nanotron::parallel
