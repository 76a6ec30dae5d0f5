// Adasum (adasum_plan.hpp) instead of the sum, tensor by tensor, over R data-parallel ranks:
//
//   R Adasum(g_1, ..., g_R)        g_r: the contribution of rank r to the gradient of the mean loss
//
// Equal g_r give sum g_r, as an all-reduce would; orthogonal ones give R sum g_r. After backward:
//
//   all-to-all: each rank receives its shard of all R gradients
//   inner products per tensor, all-reduced over the data-parallel and the tensor-parallel group
//   coefficients, on the host
//   linear combination of the shard, then all-gather
//
// All ranks end with the same bits. No state is kept between steps.

#include <algorithm>
#include <memory>
#include <vector>

#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/reduction/gram.hpp"
#include "nanotron/parallel/reducers/adasum/adasum_plan.hpp"
#include "parallel/reducers/strategies.hpp"

namespace nanotron::parallel {
namespace {

std::vector<AdasumTensor> tensors_of(const std::vector<AdasumTensor>& all, const Range& flat) {
  std::vector<AdasumTensor> tensors;
  const auto from_begin = [&](const Range& r) { return Range{r.begin - flat.begin, r.end - flat.begin}; };
  for (const AdasumTensor& t : all) {
    if (flat.contains(t.local.begin)) tensors.push_back({from_begin(t.local), from_begin(t.owned)});
  }
  return tensors;
}

template <class T>
class AdasumReducer final : public GradientReducer<T> {
 public:
  using M = master_t<T>;
  explicit AdasumReducer(const ReducerContext<T>& context);

 private:
  void start_step() override;
  void completed(index_t) override {}
  void finish_step() override;
  comm::StepTraffic strategy_traffic() const override;

  index_t ranks() const { return this->data().size(); }
  // (R, columns): what all ranks' gradients have of a range of the section, within this rank's shard.
  MatrixRef<const M> rows_of(const Range& range) const;
  void exchange();
  void measure();
  void solve();
  void combine();

  std::vector<AdasumTensor> tensors_;  // offsets from the beginning of the section
  Range shard_;                        // of the section: what this rank combines
  Vector<M> combined_;                 // combined_size
  Vector<M> received_;                 // (ranks, this rank's shard), then the gathered result
  Vector<double> products_;            // inner products (tensors, pairs of ranks)
  Vector<double> coefficients_;        // (tensors, ranks)
  std::vector<std::size_t> send_counts_, receive_counts_;
  HostMirror<Vector<double>> host_products_, host_coefficients_;
};

template <class T>
AdasumReducer<T>::AdasumReducer(const ReducerContext<T>& c)
    : GradientReducer<T>(c, {.micro_batches = ReduceWhen::all_of_step}),
      tensors_(tensors_of(adasum_tensors(c.model.table()), c.section.flat)),
      shard_(combined_range(c.section.flat.size(), c.groups.data.size(), c.groups.data.rank())),
      receive_counts_(static_cast<std::size_t>(ranks()), static_cast<std::size_t>(shard_.size())) {
  constexpr auto kind = MemoryKind::workspace;
  const auto tensors = static_cast<index_t>(tensors_.size());
  combined_ = c.arena.template take<M>(kind, combined_size(c.section.flat.size(), this->data().size()));
  received_ = c.arena.template take<M>(kind, ranks() * static_cast<index_t>(combined_.size()));
  products_ = c.arena.template take<double>(kind, tensors * kernels::gram_pairs(ranks()));
  coefficients_ = c.arena.template take<double>(kind, tensors * ranks());
  for (int r = 0; r < this->data().size(); ++r) {
    send_counts_.push_back(
        static_cast<std::size_t>(combined_range(c.section.flat.size(), this->data().size(), r).size()));
  }
  if (c.arena.is_planning()) return;
  host_products_ = Kokkos::create_mirror_view(products_);
  host_coefficients_ = Kokkos::create_mirror_view(coefficients_);
}

template <class T>
comm::StepTraffic AdasumReducer<T>::strategy_traffic() const {
  const auto bytes = [](index_t n) { return n * static_cast<index_t>(sizeof(M)); };
  const auto products = static_cast<index_t>(products_.extent(0) * sizeof(double));
  return {.tensor_parallel = comm::all_reduce_bytes(products, this->model().tensor_parallel().size()),
          .data_parallel = comm::all_to_all_bytes(bytes(this->section().flat.size()), ranks()) +
                           comm::all_gather_bytes(bytes(static_cast<index_t>(combined_.extent(0))), ranks()) +
                           comm::all_reduce_bytes(products, ranks())};
}

template <class T>
void AdasumReducer<T>::start_step() {
  this->clear(this->model().parameters().layouts.gradient);
}

template <class T>
MatrixRef<const master_t<T>> AdasumReducer<T>::rows_of(const Range& range) const {
  const index_t begin = std::clamp(range.begin, shard_.begin, shard_.end);
  const index_t end = std::clamp(range.end, shard_.begin, shard_.end);
  return {received_.data() + begin - shard_.begin, ranks(), end - begin, shard_.size()};
}

template <class T>
void AdasumReducer<T>::exchange() {
  comm::all_to_all(this->data(), this->gradient(this->section().flat).data(), send_counts_, received_.data(),
                   receive_counts_, this->device().stream());
}

template <class T>
void AdasumReducer<T>::measure() {
  const index_t pairs = kernels::gram_pairs(ranks());
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const Vector<double> gram(products_.data() + static_cast<index_t>(t) * pairs, pairs);
    kernels::gram<M>(this->device(), rows_of(tensors_[t].owned), gram);
  }
  for (comm::Group* group : {&this->data(), &this->model().tensor_parallel()}) {
    comm::all_reduce(*group, products_.data(), products_.size(), comm::ReduceOp::sum, this->device().stream());
  }
}

template <class T>
void AdasumReducer<T>::solve() {
  if (this->device().is_planning()) return this->device().wait_planned();
  const auto count = static_cast<std::size_t>(ranks()), pairs = static_cast<std::size_t>(kernels::gram_pairs(ranks()));
  const ExecutionSpace& exec = this->device().exec();
  Kokkos::deep_copy(exec, host_products_, products_);
  exec.fence();
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const std::span<double> coefficients(host_coefficients_.data() + t * count, count);
    adasum_coefficients({host_products_.data() + t * pairs, pairs}, coefficients);
    for (double& c : coefficients) c *= static_cast<double>(count);
  }
  Kokkos::deep_copy(exec, coefficients_, host_coefficients_);
}

template <class T>
void AdasumReducer<T>::combine() {
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const MatrixRef<const M> rows = rows_of(tensors_[t].local);
    const Vector<const double> coefficients(coefficients_.data() + static_cast<index_t>(t) * ranks(), ranks());
    kernels::combine_rows<M>(this->device(), rows, coefficients,
                             Vector<M>(combined_.data() + (rows.data - received_.data()), rows.columns));
  }
  comm::all_gather(this->data(), combined_.data(), combined_.size(), received_.data(), this->device().stream());
  const Vector<M> gradient = this->gradient(this->section().flat);
  kernels::cast<M, M>(this->device(), Vector<const M>(received_.data(), gradient.size()), gradient);
}

template <class T>
void AdasumReducer<T>::finish_step() {
  const typename GradientReducer<T>::Exposed exposed(*this);
  exchange();
  measure();
  solve();
  combine();
}

}  // namespace

template <class T>
std::unique_ptr<GradientReducer<T>> make_adasum(const ReducerContext<T>& context) {
  return std::make_unique<AdasumReducer<T>>(context);
}

#define NANOTRON_INSTANTIATE(T) template std::unique_ptr<GradientReducer<T>> make_adasum(const ReducerContext<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::parallel
