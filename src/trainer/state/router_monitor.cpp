// Statistics of the routers of a mixture of experts.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/deck/layer_kinds.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/moe/routing.hpp"
#include "nanotron/nn/moe/receive_buffer.hpp"
#include "nanotron/nn/received_rows.hpp"
#include "nanotron/tensor/pinned_memory.hpp"
#include "trainer/state/statistics_parts.hpp"

namespace nanotron::trainer {
namespace {

constexpr std::array columns{
    io::ExtraColumn{"router_load_balance", "1",
                    "Load-balancing loss of the routers before its factor, mean over layers and sequences; 1 for an "
                    "even load."},
    io::ExtraColumn{"router_z", "1", "z loss of the routers before its factor, mean over layers and tokens."},
    io::ExtraColumn{"dropped_share", "1",
                    "Choices of experts that were dropped because of the capacity, over all choices."},
    io::ExtraColumn{"busiest_expert_share", "1",
                    "Share of the busiest expert in the choices of its layer, maximum over the layers."},
    io::ExtraColumn{"received_load", "1",
                    "Rows that the experts of a rank received in one dispatch over those of an even load, maximum over "
                    "ranks, layers and micro-batches; only with ep > 1."}};

void clear(Device& device, const Matrix<double>& sums) { kernels::fill<double>(device, flat(sums), 0.0); }

// The biases that balance the load: one of each layer here.
template <class M>
struct ChoiceBiases {
  double rate = 0.0;  // 0: they are constant
  struct OfLayer {
    index_t row = 0;  // of the statistics
    Vector<M> bias{};
  };
  std::vector<OfLayer> of_layers{};

  // loads: a row per layer, the assignments of its experts in columns [E, 2E).
  void balance(Device& device, const Matrix<double>& loads) const {
    for (const auto& [row, bias] : of_layers) {
      const auto experts = static_cast<index_t>(bias.extent(0)), columns = static_cast<index_t>(loads.extent(1));
      const double* const of_row = loads.data() + row * columns + experts;
      kernels::balance_bias<M>(device, Vector<const double>(of_row, experts), rate, bias);
    }
  }
};

template <class T>
ChoiceBiases<master_t<T>> choice_biases(const deck::MoeConfig& moe, const model::Transformer<T>& model) {
  ChoiceBiases<master_t<T>> biases{.rate = moe.router_bias_update_rate};
  if (biases.rate == 0.0) return biases;
  const nn::ParameterSpec& spec = model.table()["model/layers/mlp/gate/e_score_correction_bias"];
  const nn::ParameterBuffers<T>& p = model.parameters();
  for (index_t l = 0; l < spec.local_layers(); ++l) {
    master_t<T>* const at = p.master.data() + p.layouts.master.at(spec.offset_of(l));
    biases.of_layers.push_back({model.table().local_layer(spec.layer_numbers[static_cast<std::size_t>(l)]),
                                Vector<master_t<T>>(p.master.data() == nullptr ? nullptr : at, moe.num_experts)});
  }
  return biases;
}

template <class M>
class PlannedRouters final : public StatisticsMonitor {
 public:
  PlannedRouters(Device& device, Matrix<double> sums, ChoiceBiases<M> biases)
      : device_(device), sums_(sums), biases_(std::move(biases)) {}
  void start(index_t) override { clear(device_, sums_); }
  void collect(double, std::span<double>) override {}
  void after_update() override {
    if (biases_.of_layers.empty()) return;
    biases_.balance(device_, sums_);
    clear(device_, sums_);
  }

 private:
  Device& device_;
  Matrix<double> sums_;
  ChoiceBiases<M> biases_;
};

// What the ranks received, against what moe%receive_quantile assumes, and the factor that would have been enough: that
// of the quantile with the measured overdispersion, and at least the largest load. No rank receives more than all rows.
std::string received_text(const deck::MoeConfig& moe, index_t ranks, const nn::ReceivedLoads& loads, double largest) {
  if (loads.dispatches == 0.0) return {};
  const double overdispersion = loads.overdispersion(ranks), even = loads.dispatches / loads.inverse_even;
  const double q = moe.receive_quantile > 0.0 ? moe.receive_quantile : 0.99999;
  const double enough = std::max(nn::received_quantile(q, even, ranks, overdispersion), largest);
  return fmt::format(
      "received rows of experts over an even load of {:.0f}, {:.0f} dispatches to a rank: 99.9 % at most {:.2f}, "
      "largest "
      "{:.2f}; overdispersion {:.3f}, assumed by moe%receive_quantile: {:g}\n"
      "moe%receive_factor = {:.2f} holds the quantile {:.15g} of this load",
      even, loads.dispatches, std::min(loads.quantile(0.999), largest), largest, overdispersion,
      nn::received_overdispersion, std::min(std::ceil(100.0 * enough) / 100.0, static_cast<double>(ranks)), q);
}

// `sums` has one row per layer. With E experts, K assignments per token, n_e assignments of expert e in a sequence of s
// positions and S tokens, T tokens in the step:
//
//   columns [0, E)      sum over sequences of n_e sum_t p_te s / S
//   columns [E, 2E)     sum over sequences of n_e, in all K T
//   columns 2E, 2E + 1  sum of z^2, dropped assignments
//
//   load balance = sum over sequences of (S / T) E sum_e n_e / (K S) sum_t p_te / S
template <class M>
class Routers final : public StatisticsMonitor {
 public:
  Routers(const deck::Config& config, comm::ProcessGrid& grid, Device& device, Matrix<double> sums,
          ChoiceBiases<M> biases, nn::ReceivedRows* received)
      : moe_(config.model.moe),
        layers_(static_cast<double>(deck::routed_layer_count(config.model))),
        length_(static_cast<double>(config.data.sequence_length)),
        grid_(grid),
        device_(device),
        sums_(sums),
        biases_(std::move(biases)),
        ranks_(config.parallel.ep),
        received_(config.parallel.ep > 1 ? received : nullptr),
        copy_(sums.size()),
        host_(copy_.span().data(), sums.extent(0), sums.extent(1)) {}

  void start(index_t) override {
    Kokkos::deep_copy(device_.exec(), host_, sums_);
    clear(device_, sums_);
    if (received_ != nullptr) load_ = received_->take();
  }

  void collect(double, std::span<double> values) override {
    NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, host_.data(), static_cast<int>(host_.size()), MPI_DOUBLE, MPI_SUM,
                                     grid_.data_parallel().mpi()));
    const auto experts = static_cast<std::size_t>(moe_.num_experts);
    std::array<double, 3> sum{};   // balance, z^2, dropped
    std::array<double, 2> most{};  // assignments of an expert, and of a layer: all have as many
    const std::size_t rows = host_.extent(1) > 0 ? host_.extent(0) : 0;  // 0: no layer here has experts
    for (std::size_t l = 0; l < rows; ++l) {
      double of_layer = 0.0;
      for (std::size_t e = 0; e < experts; ++e) {
        sum[0] += host_(l, e);
        most[0] = std::max(most[0], host_(l, experts + e));
        of_layer += host_(l, experts + e);
      }
      most[1] = std::max(most[1], of_layer);
      sum[1] += host_(l, 2 * experts);
      sum[2] += host_(l, 2 * experts + 1);
    }
    NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, sum.data(), 3, MPI_DOUBLE, MPI_SUM, grid_.pp().mpi()));
    NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, most.data(), 2, MPI_DOUBLE, MPI_MAX, grid_.pp().mpi()));
    const auto [busiest, assignments] = most;
    std::ranges::fill(values, 0.0);
    if (received_ != nullptr) {  // all ranks of the world have one of their own
      values[4] = load_;
      NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &values[4], 1, MPI_DOUBLE, MPI_MAX, grid_.world().mpi()));
    }
    if (assignments == 0.0) return;  // no token
    const double tokens = assignments / static_cast<double>(moe_.num_experts_per_tok);
    values[0] = sum[0] * static_cast<double>(moe_.num_experts) / (assignments * length_ * layers_);
    values[1] = sum[1] / (tokens * layers_);
    values[2] = sum[2] / (assignments * layers_);
    values[3] = busiest / assignments;
  }

  /// The assignments of the global batch are whole numbers, the same on every grid: so are the biases.
  void after_update() override {
    if (biases_.of_layers.empty()) return;
    Kokkos::deep_copy(device_.exec(), sums_, host_);
    biases_.balance(device_, sums_);
    clear(device_, sums_);
  }

  std::string summary() override {
    if (received_ == nullptr) return {};
    nn::ReceivedLoads loads = received_->loads();
    double largest = received_->largest();
    static_assert(sizeof loads == (4 + std::tuple_size_v<decltype(loads.histogram)>)*sizeof(double));
    NANOTRON_CHECK_MPI(
        MPI_Allreduce(MPI_IN_PLACE, &loads, sizeof loads / sizeof(double), MPI_DOUBLE, MPI_SUM, grid_.world().mpi()));
    NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &largest, 1, MPI_DOUBLE, MPI_MAX, grid_.world().mpi()));
    return received_text(moe_, ranks_, loads, largest);
  }

 private:
  deck::MoeConfig moe_;
  double layers_, length_;
  comm::ProcessGrid& grid_;
  Device& device_;
  Matrix<double> sums_;
  ChoiceBiases<M> biases_;
  index_t ranks_;               // that share the experts
  nn::ReceivedRows* received_;  // null: no other rank sends any
  double load_ = 0.0;
  PinnedArray<double> copy_;
  Kokkos::View<double**, Kokkos::LayoutRight, Kokkos::HostSpace, Kokkos::MemoryUnmanaged> host_;
};

}  // namespace

std::span<const io::ExtraColumn> load_columns(const deck::Config& config) {
  if (config.model.moe.num_experts == 0) return {};
  return std::span(columns).first(columns.size() - (config.parallel.ep > 1 ? 0 : 1));
}

std::string load_text(const deck::Config& config, std::span<const double> values) {
  const std::string dropped =
      config.model.moe.capacity_factor > 0.0 ? fmt::format("  dropped {:.1f} %", 100.0 * values[2]) : "";
  const std::string received = config.parallel.ep > 1 ? fmt::format("  received {:.2f}", values[4]) : "";
  return fmt::format("  load balance {:.3f}  z^2 {:.2f}  busiest expert {:.1f} %{}{}", values[0], values[1],
                     100.0 * values[3], received, dropped);
}

template <class T>
std::unique_ptr<StatisticsMonitor> make_load_monitor(const deck::Config& config, comm::ProcessGrid& grid,
                                                     Device& device, const TrainingState<T>& state) {
  using M = master_t<T>;
  ChoiceBiases<M> biases = choice_biases(config.model.moe, state.model);
  const Matrix<double> sums = state.model.statistics();
  if (device.is_planning()) return std::make_unique<PlannedRouters<M>>(device, sums, std::move(biases));
  return std::make_unique<Routers<M>>(config, grid, device, sums, std::move(biases), state.received_rows.get());
}

#define NANOTRON_INSTANTIATE(T)                                                                                   \
  template std::unique_ptr<StatisticsMonitor> make_load_monitor(const deck::Config&, comm::ProcessGrid&, Device&, \
                                                                const TrainingState<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::trainer
