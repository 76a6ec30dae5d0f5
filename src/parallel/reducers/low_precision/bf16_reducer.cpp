#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "parallel/reducers/all_reduce/bucketed_all_reduce.hpp"
#include "parallel/reducers/low_precision/bf16_reducers.hpp"

namespace nanotron::parallel {
namespace {

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

template <class T>
Bf16Reducer<T>::Bf16Reducer(const ReducerContext<T>& c)
    : BucketedAllReduce<T>(c), rounded_(c.arena.template take<bf16>(MemoryKind::workspace, c.section.flat.size())) {}

template <class T>
comm::Request Bf16Reducer<T>::start(const Range& bucket) {
  kernels::cast<master_t<T>, bf16>(this->device(), this->part(bucket), rounded(bucket));
  return comm::start_all_reduce(this->data(), rounded(bucket).data(), static_cast<std::size_t>(bucket.size()),
                                comm::ReduceOp::sum, this->device().stream());
}

template <class T>
void Bf16Reducer<T>::received(const Range& bucket) {
  kernels::cast<bf16, master_t<T>>(this->device(), rounded(bucket), this->part(bucket));
}

template <class T>
comm::StepTraffic Bf16Reducer<T>::strategy_traffic() const {
  const index_t bytes = this->section().flat.size() * static_cast<index_t>(sizeof(bf16));
  return {.data_parallel = comm::all_reduce_bytes(bytes, this->data().size())};
}

}  // namespace

template <class T>
std::unique_ptr<GradientReducer<T>> make_bf16(const ReducerContext<T>& context) {
  return std::make_unique<Bf16Reducer<T>>(context);
}

#define NANOTRON_INSTANTIATE(T) template std::unique_ptr<GradientReducer<T>> make_bf16(const ReducerContext<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::parallel
