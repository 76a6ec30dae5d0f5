// What is sent and received takes the place of the gradient:
//
//   | sent, n bf16 | received: n / S bf16 of each rank |       in the n elements of M that `whole` has

#include <algorithm>

#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "parallel/reducers/low_precision/bf16_reducers.hpp"

namespace nanotron::parallel {
namespace {

template <class T>
class Bf16ShardSum final : public ShardSum<T> {
 public:
  using M = master_t<T>;
  static_assert(sizeof(M) >= 2 * sizeof(bf16));
  explicit Bf16ShardSum(const ReducerContext<T>& context);

  comm::Request start(const Vector<M>& whole) const override;
  void store(const Vector<M>& whole) const override;
  void add(const Vector<M>& whole, const Vector<M>& shard) const override;
  comm::Bytes bytes(index_t elements) const override {
    return comm::all_to_all_bytes(elements * static_cast<index_t>(sizeof(bf16)), ranks());
  }

 private:
  index_t ranks() const { return group_->size(); }
  static index_t size_of(const Vector<M>& v) { return static_cast<index_t>(v.extent(0)); }
  static bf16* narrow(const Vector<M>& v) { return reinterpret_cast<bf16*>(v.data()); }
  static Vector<bf16> sent(const Vector<M>& whole) { return Vector<bf16>(narrow(whole), size_of(whole)); }
  Matrix<bf16> received(const Vector<M>& whole) const {
    return Matrix<bf16>(narrow(whole) + size_of(whole), ranks(), size_of(whole) / ranks());
  }

  comm::Group* group_;
  Device* device_;
  Vector<M> scratch_;  // of one unit: its rounded gradient, later the shard of its sum
};

template <class T>
Bf16ShardSum<T>::Bf16ShardSum(const ReducerContext<T>& c) : group_(&c.groups.shard), device_(&c.device) {
  index_t unit = 0;
  for (index_t u = c.section.units.begin; u < c.section.units.end; ++u)
    unit = std::max(unit, c.model.table().unit(u).range.size());
  const index_t rounded = unit * static_cast<index_t>(sizeof(bf16)) / static_cast<index_t>(sizeof(M));
  scratch_ = c.arena.template take<M>(MemoryKind::gradients, std::max(rounded, unit / ranks()));
}

template <class T>
comm::Request Bf16ShardSum<T>::start(const Vector<M>& whole) const {
  const Vector<bf16> rounded(narrow(scratch_), size_of(whole));
  kernels::cast<M, bf16>(*device_, whole, rounded);
  kernels::copy<bf16>(*device_, rounded, sent(whole));
  const Matrix<bf16> addends = received(whole);
  return comm::start_all_to_all<bf16>(*group_, sent(whole).data(), addends.extent(1), addends.data(),
                                      device_->stream());
}

template <class T>
void Bf16ShardSum<T>::store(const Vector<M>& whole) const {
  const Vector<M> mine = this->shard_of_rank(whole, *group_), sum(scratch_.data(), mine.extent(0));
  kernels::fill<M>(*device_, sum, 0.0);
  add(whole, sum);  // not into `mine`, where addends may be
  kernels::copy<M>(*device_, sum, mine);
}

template <class T>
void Bf16ShardSum<T>::add(const Vector<M>& whole, const Vector<M>& shard) const {
  kernels::add_rows<M>(*device_, received(whole), shard);
}

}  // namespace

template <class T>
std::unique_ptr<ShardSum<T>> make_bf16_shard_sum(const ReducerContext<T>& context) {
  return std::make_unique<Bf16ShardSum<T>>(context);
}

#define NANOTRON_INSTANTIATE(T) template std::unique_ptr<ShardSum<T>> make_bf16_shard_sum(const ReducerContext<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::parallel
