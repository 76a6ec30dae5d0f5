#include "nanotron/parallel/reducers/scaled_sum.hpp"

#include "nanotron/kernels/reduction/scaled_half.hpp"

namespace nanotron::parallel {

template <class T>
Vector<master_t<T>> ScaledSum<T>::largest(const Range& bucket) const {
  const index_t behind = static_cast<index_t>(half_.size()) - bucket.end;
  return Vector<M>(largest_.data() + behind / kernels::half_block, kernels::half_blocks(bucket.size()));
}

template <class T>
void ScaledSum<T>::prepare(const Range& bucket) {
  const Vector<M> most = largest(bucket);
  kernels::block_largest<M>(this->device(), this->gradient(bucket), most);
  agreeing_[prepared_++ % 2] =
      comm::start_all_reduce(this->replicas(), most.data(), most.size(), comm::ReduceOp::max, this->device().stream());
}

template <class T>
comm::Request ScaledSum<T>::start(const Range& bucket) {
  agreeing_[used_++ % 2].wait();
  kernels::scale_to_half<M>(this->device(), this->gradient(bucket), largest(bucket), this->replicas().size(),
                            part(bucket));
  return comm::start_all_reduce(this->replicas(), part(bucket).data(), static_cast<std::size_t>(bucket.size()),
                                comm::ReduceOp::sum, this->device().stream());
}

template <class T>
void ScaledSum<T>::land(const Range& bucket) {
  kernels::scale_from_half<M>(this->device(), part(bucket), largest(bucket), this->replicas().size(),
                              this->gradient(bucket));
}

template class ScaledSum<double>;
template class ScaledSum<float>;
template class ScaledSum<bf16>;

}  // namespace nanotron::parallel
