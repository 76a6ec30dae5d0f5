#include "nanotron/trainer/state/router_monitor.hpp"

#include <algorithm>
#include <array>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/tensor/pinned_memory.hpp"
#include "nanotron/trainer/state/training_state.hpp"

namespace nanotron::trainer {
namespace {

class NoRouters final : public RouterMonitor {
 public:
  void start() override {}
  RouterNumbers collect() override { return {}; }
};

void clear(Device& device, const Matrix<double>& sums) {
  kernels::fill<double>(device, Vector<double>(sums.data(), sums.size()), 0.0);
}

class PlannedRouters final : public RouterMonitor {
 public:
  PlannedRouters(Device& device, Matrix<double> sums) : device_(device), sums_(sums) {}
  void start() override { clear(device_, sums_); }
  RouterNumbers collect() override { return {}; }

 private:
  Device& device_;
  Matrix<double> sums_;
};

// `sums` has one row per layer. With E experts, K choices per token, n_e choices of expert e in a sequence of s
// positions and S tokens, T tokens in the step:
//
//   columns [0, E)      sum over sequences of n_e sum_t p_te s / S
//   columns [E, 2E)     sum over sequences of n_e, in all K T
//   columns 2E, 2E + 1  sum of z^2, dropped choices
//
//   load balance = sum over sequences of (S / T) E sum_e n_e / (K S) sum_t p_te / S
class Routers final : public RouterMonitor {
 public:
  Routers(const deck::Config& config, comm::ProcessGrid& grid, Device& device, Matrix<double> sums)
      : moe_(config.model.moe),
        layers_(static_cast<double>(config.model.num_hidden_layers)),
        length_(static_cast<double>(config.data.sequence_length)),
        grid_(grid),
        device_(device),
        sums_(sums),
        copy_(sums.size()),
        host_(copy_.span().data(), sums.extent(0), sums.extent(1)) {}

  void start() override {
    Kokkos::deep_copy(device_.exec(), host_, sums_);
    clear(device_, sums_);
  }

  RouterNumbers collect() override {
    NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, host_.data(), static_cast<int>(host_.size()), MPI_DOUBLE, MPI_SUM,
                                     grid_.data_parallel().mpi()));
    const auto experts = static_cast<std::size_t>(moe_.num_experts);
    std::array<double, 3> sum{};   // balance, z^2, dropped
    std::array<double, 2> most{};  // choices of an expert, and of a layer: all have as many
    for (std::size_t l = 0; l < host_.extent(0); ++l) {
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
    const auto [busiest, choices] = most;
    if (choices == 0.0) return {};  // no token
    const double tokens = choices / static_cast<double>(moe_.num_experts_per_tok);
    return {.load_balance = sum[0] * static_cast<double>(moe_.num_experts) / (choices * length_ * layers_),
            .z = sum[1] / (tokens * layers_),
            .dropped_share = sum[2] / (choices * layers_),
            .busiest_share = busiest / choices};
  }

 private:
  deck::MoeConfig moe_;
  double layers_, length_;
  comm::ProcessGrid& grid_;
  Device& device_;
  Matrix<double> sums_;
  PinnedArray<double> copy_;
  Kokkos::View<double**, Kokkos::LayoutRight, Kokkos::HostSpace, Kokkos::MemoryUnmanaged> host_;
};

}  // namespace

std::unique_ptr<RouterMonitor> make_router_monitor(const deck::Config& config, comm::ProcessGrid& grid, Device& device,
                                                   Matrix<double> sums) {
  if (config.model.moe.num_experts == 0) return std::make_unique<NoRouters>();
  if (device.is_planning()) return std::make_unique<PlannedRouters>(device, sums);
  return std::make_unique<Routers>(config, grid, device, sums);
}

}  // namespace nanotron::trainer
