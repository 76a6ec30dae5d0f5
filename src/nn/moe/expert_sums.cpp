#include "nanotron/nn/moe/expert_sums.hpp"

#include <algorithm>

#include "nanotron/kernels/elementwise/elementwise.hpp"

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
    const Matrix<T> all = region.partial_sum(y);
    sum(device, all.data(), elements_of(all));
  }
  void rows(Device& device, Matrix<T> rows) override { sum(device, rows.data(), elements_of(rows)); }
  void values(Device& device, Vector<M> values) override { sum(device, values.data(), elements_of(values)); }
  // Each rank has the sums of all tokens, and keeps those of its own rows.
  Pending tokens(Device& device, TensorParallelRegion<T>& region, Matrix<T> y) override {
    if (!region.is_sharded()) return Pending();
    const MatrixRef<const T> all(Matrix<const T>(region.partial_sum(y)));
    kernels::fill<T>(device, flat(y), 0.0);
    for (const HeldTokens& held : region.held_tokens()) {
      const index_t rows = std::clamp<index_t>(all.rows - held.first_token, 0, held.rows.size());
      kernels::copy_matrix<T>(device, all.row_block(std::min(held.first_token, all.rows), rows),
                              MatrixRef<T>(y).row_block(held.rows.begin, rows));
    }
    return Pending();
  }

 private:
  template <class U>
  void sum(Device& device, U* data, std::size_t n) {
    if (n > 0) comm::all_reduce(*tp_, data, n, comm::ReduceOp::sum, device.stream());
  }
  comm::StepTraffic all_reduced(index_t bytes) const {
    return {.tensor_parallel = comm::all_reduce_bytes(bytes, tp_->size())};
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
