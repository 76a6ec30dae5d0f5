// The z loss of the output logits.

#include <fmt/format.h>

#include <array>

#include "nanotron/base/types.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/optim/update_decision.hpp"
#include "nanotron/tensor/pinned_memory.hpp"
#include "trainer/state/statistics_parts.hpp"

namespace nanotron::trainer {
namespace {

constexpr std::array z_loss_column{
    io::ExtraColumn{"z_loss", "1",
                    "z_loss_coefficient times the mean over target tokens of lse^2: added to loss in what "
                    "training minimises."}};

// An exact sum, as that of the losses: the same bits on every grid where the rows have the same.
class ZLoss final : public StatisticsMonitor {
 public:
  ZLoss(double coefficient, comm::ProcessGrid& grid, Device& device, const AuxiliaryRows& of)
      : coefficient_(coefficient), groups_{&grid.data_parallel(), &grid.pp()}, device_(device), of_(of) {}

  void start(index_t rows) override {
    kernels::sum(device_, Vector<const double>(of_.rows.data(), rows), of_.sum);
    optim::sum_over(device_, groups_, of_.sum, of_.top_place);
    if (!device_.is_planning()) Kokkos::deep_copy(device_.exec(), host_, of_.sum);
  }

  void collect(double targets, std::span<double> values) override {
    values.front() = coefficient_ * kernels::value(copy_.span().front()) / targets;
  }

 private:
  double coefficient_;
  std::vector<comm::Group*> groups_;
  Device& device_;
  AuxiliaryRows of_;
  PinnedArray<kernels::ExactSum> copy_{1};
  Kokkos::View<kernels::ExactSum*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged> host_{copy_.span().data(), 1};
};

}  // namespace

std::span<const io::ExtraColumn> z_loss_columns(const deck::Config& config) {
  if (config.optimizer.z_loss_coefficient == 0.0) return {};
  return z_loss_column;
}

std::string z_loss_text(const deck::Config&, std::span<const double> values) {
  return fmt::format("  z loss {:.2e}", values.front());
}

template <class T>
std::unique_ptr<StatisticsMonitor> make_z_loss_monitor(const deck::Config& config, comm::ProcessGrid& grid,
                                                       Device& device, const TrainingState<T>& state) {
  return std::make_unique<ZLoss>(config.optimizer.z_loss_coefficient, grid, device, state.auxiliary);
}

#define NANOTRON_INSTANTIATE(T)                                                                                     \
  template std::unique_ptr<StatisticsMonitor> make_z_loss_monitor(const deck::Config&, comm::ProcessGrid&, Device&, \
                                                                  const TrainingState<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::trainer
