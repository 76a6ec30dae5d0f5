// The z loss of the output logits.

#include <fmt/format.h>

#include <array>

#include "nanotron/base/types.hpp"
#include "nanotron/deck/config.hpp"
#include "trainer/state/statistics_parts.hpp"

namespace nanotron::trainer {
namespace {

constexpr std::array z_loss_column{
    io::ExtraColumn{"z_loss", "1",
                    "z_loss_coefficient times the mean over target tokens of lse^2: added to loss in what "
                    "training minimises."}};

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
  return make_auxiliary_mean(config.optimizer.z_loss_coefficient, 1, grid, device, state.auxiliary);
}

#define NANOTRON_INSTANTIATE(T)                                                                                     \
  template std::unique_ptr<StatisticsMonitor> make_z_loss_monitor(const deck::Config&, comm::ProcessGrid&, Device&, \
                                                                  const TrainingState<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::trainer
