#include "nanotron/nn/moe/expert_sums.hpp"

namespace nanotron::nn {
namespace {

template <class T>
class OfTokens final : public ExpertSums<T> {
 public:
  using M = master_t<T>;
  comm::StepTraffic sum_traffic(const TensorParallelRegion<T>& region, const ExpertSumSize&) const override {
    return region.sum_traffic();
  }
  comm::StepTraffic values_traffic(const ExpertSumSize&) const override { return {}; }
  void shared(Device&, TensorParallelRegion<T>&, Matrix<T>) override {}
  void rows(Device&, Matrix<T>) override {}
  void values(Device&, Vector<M>) override {}
  Pending tokens(Device& device, TensorParallelRegion<T>& region, Matrix<T> y) override {
    return region.start_sum(device, y);
  }
};

template <class T>
class OfRows final : public ExpertSums<T> {
 public:
  using M = master_t<T>;
  explicit OfRows(comm::Group& tp) : tp_(&tp) {}

  comm::StepTraffic sum_traffic(const TensorParallelRegion<T>&, const ExpertSumSize& size) const override {
    return all_reduced((size.rows + size.shared_tokens) * size.hidden * static_cast<index_t>(sizeof(T)));
  }
  comm::StepTraffic values_traffic(const ExpertSumSize& size) const override {
    return all_reduced((size.rows + size.shared_tokens) * static_cast<index_t>(sizeof(M)));
  }
  void shared(Device& device, TensorParallelRegion<T>& region, Matrix<T> y) override {
    region.start_sum(device, y).wait();
  }
  void rows(Device& device, Matrix<T> rows) override { sum(device, rows.data(), elements_of(rows)); }
  void values(Device& device, Vector<M> values) override { sum(device, values.data(), elements_of(values)); }
  Pending tokens(Device&, TensorParallelRegion<T>&, Matrix<T>) override { return Pending(); }

 private:
  comm::StepTraffic all_reduced(index_t bytes) const {
    return {.tensor_parallel = comm::all_reduce_bytes(bytes, tp_->size())};
  }

  template <class U>
  void sum(Device& device, U* data, std::size_t n) {
    if (n > 0) comm::all_reduce(*tp_, data, n, comm::ReduceOp::sum, device.stream());
  }

  comm::Group* tp_;
};

}  // namespace

template <class T>
std::unique_ptr<ExpertSums<T>> make_expert_sums(SumsOf sums, comm::Group& tp) {
  if (sums == SumsOf::rows) return std::make_unique<OfRows<T>>(tp);
  return std::make_unique<OfTokens<T>>();
}

#define NANOTRON_INSTANTIATE(T) template std::unique_ptr<ExpertSums<T>> make_expert_sums(SumsOf, comm::Group&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::nn
