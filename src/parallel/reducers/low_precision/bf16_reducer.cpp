#include "bf16_reducer.hpp"

#include "nanotron/kernels/elementwise/cast.hpp"

namespace nanotron::parallel {

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

template class Bf16Reducer<double>;
template class Bf16Reducer<float>;
template class Bf16Reducer<bf16>;

}  // namespace nanotron::parallel
