// The losses of layers that predict later tokens.

#include <fmt/format.h>

#include <array>

#include "nanotron/base/types.hpp"
#include "nanotron/deck/config.hpp"
#include "trainer/state/statistics_parts.hpp"

namespace nanotron::trainer {
namespace {

constexpr std::array later_tokens_column{
    io::ExtraColumn{"mtp_loss", "nat",
                    "Mean loss of the layers that predict later tokens, each the sum of its losses over the number of "
                    "target tokens of the next-token loss."}};

}  // namespace

LaterRows::LaterRows(const deck::Config& config, index_t appended_here, Arena& arena, index_t tokens)
    : inputs(arena.take<std::int32_t>(MemoryKind::workspace, appended_here * tokens)),
      targets(arena.take<std::int32_t>(MemoryKind::workspace, appended_here * tokens)),
      losses(arena, config.model.num_nextn_predict_layers * tokens) {
  if (appended_here > 0) weight = config.optimizer.mtp_loss_coefficient / static_cast<double>(appended_here);
}

std::span<const io::ExtraColumn> later_tokens_columns(const deck::Config& config) {
  if (config.model.num_nextn_predict_layers == 0) return {};
  return later_tokens_column;
}

std::string later_tokens_text(const deck::Config&, std::span<const double> values) {
  return fmt::format("  mtp loss {:.4f}", values.front());
}

template <class T>
std::unique_ptr<StatisticsMonitor> make_later_tokens_monitor(const deck::Config& config, comm::ProcessGrid& grid,
                                                             Device& device, const TrainingState<T>& state) {
  return make_auxiliary_mean(1.0, config.model.num_nextn_predict_layers, grid, device, state.later.losses);
}

#define NANOTRON_INSTANTIATE(T)                                                                                  \
  template std::unique_ptr<StatisticsMonitor> make_later_tokens_monitor(const deck::Config&, comm::ProcessGrid&, \
                                                                        Device&, const TrainingState<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::trainer
