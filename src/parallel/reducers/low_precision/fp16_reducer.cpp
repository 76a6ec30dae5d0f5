// Gradients all-reduced in fp16: half the bytes of fp32, three bits more than bf16. Each block of kernels::half_block
// elements is scaled by a power of two that all ranks agree on (kernels/reduction/scaled_half.hpp):
//
//   prepare(bucket)   all-reduce (max) of max |x| of its blocks
//   start(bucket)     after prepare of the next bucket, so that the maxima have arrived: all-reduce (sum) of the bucket
//
// A bucket is a whole number of blocks.

#include <memory>

#include "nanotron/base/fp16.hpp"
#include "nanotron/kernels/reduction/scaled_half.hpp"
#include "parallel/reducers/all_reduce/bucketed_all_reduce.hpp"
#include "parallel/reducers/strategies.hpp"

namespace nanotron::parallel {
namespace {

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

template <class T>
Fp16Reducer<T>::Fp16Reducer(const ReducerContext<T>& c)
    : BucketedAllReduce<T>(c),
      half_(c.arena.template take<fp16>(MemoryKind::workspace, c.section.flat.size())),
      largest_(c.arena.template take<M>(MemoryKind::workspace, kernels::half_blocks(c.section.flat.size()))) {}

template <class T>
Vector<master_t<T>> Fp16Reducer<T>::largest(const Range& bucket) const {
  const index_t after = static_cast<index_t>(half_.size()) - bucket.end;
  return Vector<M>(largest_.data() + after / kernels::half_block, kernels::half_blocks(bucket.size()));
}

template <class T>
void Fp16Reducer<T>::prepare(const Range& bucket) {
  const Vector<M> most = largest(bucket);
  kernels::block_largest<M>(this->device(), this->part(bucket), most);
  agreeing_[prepared_++ % 2] =
      comm::start_all_reduce(this->data(), most.data(), most.size(), comm::ReduceOp::max, this->device().stream());
}

template <class T>
comm::Request Fp16Reducer<T>::start(const Range& bucket) {
  agreeing_[used_++ % 2].wait();
  kernels::scale_to_half<M>(this->device(), this->part(bucket), largest(bucket), this->data().size(), scaled(bucket));
  return comm::start_all_reduce(this->data(), scaled(bucket).data(), static_cast<std::size_t>(bucket.size()),
                                comm::ReduceOp::sum, this->device().stream());
}

template <class T>
void Fp16Reducer<T>::received(const Range& bucket) {
  kernels::scale_from_half<M>(this->device(), scaled(bucket), largest(bucket), this->data().size(), this->part(bucket));
}

template <class T>
comm::StepTraffic Fp16Reducer<T>::strategy_traffic() const {
  const index_t bytes = this->section().flat.size() * static_cast<index_t>(sizeof(fp16)) +
                        static_cast<index_t>(largest_.extent(0) * sizeof(M));
  return {.data_parallel = comm::all_reduce_bytes(bytes, this->data().size())};
}

}  // namespace

template <class T>
std::unique_ptr<GradientReducer<T>> make_fp16(const ReducerContext<T>& context) {
  return std::make_unique<Fp16Reducer<T>>(context);
}

#define NANOTRON_INSTANTIATE(T) template std::unique_ptr<GradientReducer<T>> make_fp16(const ReducerContext<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::parallel
