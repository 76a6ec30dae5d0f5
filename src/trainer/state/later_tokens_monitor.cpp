// The losses of layers that predict later tokens.

#include <fmt/format.h>

#include <array>

#include "nanotron/base/types.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/optim/update_decision.hpp"
#include "nanotron/tensor/pinned_memory.hpp"
#include "trainer/state/statistics_parts.hpp"

namespace nanotron::trainer {
namespace {

constexpr std::array later_tokens_column{
    io::ExtraColumn{"mtp_loss", "nat",
                    "Mean loss of the layers that predict later tokens, each the sum of its losses over the number of "
                    "target tokens of the next-token loss."}};

// An exact sum, as that of the losses.
class LaterTokensLoss final : public StatisticsMonitor {
 public:
  LaterTokensLoss(index_t layers, comm::ProcessGrid& grid, Device& device, const AuxiliaryRows& of)
      : layers_(layers), groups_{&grid.data_parallel(), &grid.pp()}, device_(device), of_(of) {}

  void start(index_t rows) override {
    kernels::sum(device_, Vector<const double>(of_.rows.data(), layers_ * rows), of_.sum);
    optim::sum_over(device_, groups_, of_.sum, of_.top_place);
    if (!device_.is_planning()) Kokkos::deep_copy(device_.exec(), host_, of_.sum);
  }

  void collect(double targets, std::span<double> values) override {
    values.front() = kernels::value(copy_.span().front()) / (static_cast<double>(layers_) * targets);
  }

 private:
  index_t layers_;
  std::vector<comm::Group*> groups_;
  Device& device_;
  AuxiliaryRows of_;
  PinnedArray<kernels::ExactSum> copy_{1};
  Kokkos::View<kernels::ExactSum*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged> host_{copy_.span().data(), 1};
};

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
  return std::make_unique<LaterTokensLoss>(config.model.num_nextn_predict_layers, grid, device, state.later.losses);
}

#define NANOTRON_INSTANTIATE(T)                                                                                  \
  template std::unique_ptr<StatisticsMonitor> make_later_tokens_monitor(const deck::Config&, comm::ProcessGrid&, \
                                                                        Device&, const TrainingState<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::trainer
