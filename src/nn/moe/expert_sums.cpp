#include "nanotron/nn/moe/expert_sums.hpp"

#include <algorithm>

#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nn/linear/rows.hpp"

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
  void shared_values(Device&, Vector<M>) override {}
  void rows(Device&, Matrix<T>) override {}
  void row_values(Device&, Vector<M>) override {}
  void token_values(Device&, const Range&, Vector<M>) override {}
  Pending tokens(Device& device, TensorParallelRegion<T>& region, const Range&, Matrix<T> y) override {
    return region.start_sum(device, y);
  }
};

// Sums over the group in the order of its tree. Each rank gets those of all tokens, and keeps those of its own rows.
template <class T>
class InOrder : public ExpertSums<T> {
 public:
  using M = master_t<T>;
  explicit InOrder(comm::Group& tp) : tp_(&tp) {}

  comm::StepTraffic sum_traffic(const TensorParallelRegion<T>&, const ExpertSumSize& size) const override {
    return all_reduced((summed(size).rows + size.shared_tokens) * size.hidden * static_cast<index_t>(sizeof(T)));
  }
  comm::StepTraffic values_traffic(const ExpertSumSize& size) const override {
    return all_reduced((summed(size).values + size.shared_tokens) * static_cast<index_t>(sizeof(M)));
  }
  void shared(Device& device, TensorParallelRegion<T>& region, Matrix<T> y) override {
    sum(device, region.partial_sum(y));
  }
  void shared_values(Device& device, Vector<M> values) override { sum(device, values); }

 protected:
  // Beside those of the shared expert.
  struct Summed {
    index_t rows, values;
  };
  virtual Summed summed(const ExpertSumSize& size) const = 0;

  template <class View>
  void sum(Device& device, const View& values) {
    if (elements_of(values) > 0)
      comm::all_reduce(*tp_, values.data(), elements_of(values), comm::ReduceOp::sum, device.stream());
  }
  Pending keep_own(Device& device, TensorParallelRegion<T>& region, Matrix<T> y) {
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
  comm::StepTraffic all_reduced(index_t bytes) const {
    return {.tensor_parallel = comm::all_reduce_bytes(bytes, tp_->size())};
  }

  comm::Group* tp_;
};

template <class T>
class OfRows final : public InOrder<T> {
 public:
  using M = master_t<T>;
  using InOrder<T>::InOrder;

  void rows(Device& device, Matrix<T> rows) override { this->sum(device, rows); }
  void row_values(Device& device, Vector<M> values) override { this->sum(device, values); }
  void token_values(Device&, const Range&, Vector<M>) override {}
  Pending tokens(Device& device, TensorParallelRegion<T>& region, const Range&, Matrix<T> y) override {
    return this->keep_own(device, region, y);
  }

 private:
  typename InOrder<T>::Summed summed(const ExpertSumSize& size) const override { return {size.rows, size.rows}; }
};

// A slice is sent as a sum with -0 of the other ranks, which changes no bit: x + -0 = x, also for x = -0.
template <class T>
class OfSlices final : public InOrder<T> {
 public:
  using M = master_t<T>;
  using InOrder<T>::InOrder;

  void rows(Device&, Matrix<T>) override {}
  void row_values(Device&, Vector<M>) override {}
  void token_values(Device& device, const Range& here, Vector<M> values) override {
    gather(device, Matrix<M>(values.data(), values.extent(0), 1), here);
  }
  Pending tokens(Device& device, TensorParallelRegion<T>& region, const Range& here, Matrix<T> y) override {
    gather(device, region.partial_sum(y), here);
    return this->keep_own(device, region, y);
  }

 private:
  typename InOrder<T>::Summed summed(const ExpertSumSize& size) const override {
    return {size.tokens, size.assignments};
  }
  template <class U>
  void gather(Device& device, const Matrix<U>& all, const Range& here) {
    kernels::fill<U>(device, flat(rows_of(all, {0, here.begin})), -0.0);
    kernels::fill<U>(device, flat(rows_of(all, {here.end, static_cast<index_t>(all.extent(0))})), -0.0);
    this->sum(device, all);
  }
};

}  // namespace

template <class T>
std::unique_ptr<ExpertSums<T>> make_expert_sums(SumsOf sums, comm::Group& tp) {
  if (sums == SumsOf::rows) return std::make_unique<OfRows<T>>(tp);
  if (sums == SumsOf::slices) return std::make_unique<OfSlices<T>>(tp);
  return std::make_unique<OfTokens<T>>();
}

#define NANOTRON_INSTANTIATE(T) template std::unique_ptr<ExpertSums<T>> make_expert_sums(SumsOf, comm::Group&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::nn
