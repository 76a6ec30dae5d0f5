#include "fp16_reducer.hpp"

#include "nanotron/kernels/reduction/scaled_half.hpp"

namespace nanotron::parallel {

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

template class Fp16Reducer<double>;
template class Fp16Reducer<float>;
template class Fp16Reducer<bf16>;

}  // namespace nanotron::parallel
