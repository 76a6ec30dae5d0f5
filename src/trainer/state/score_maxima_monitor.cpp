// The largest attention scores of a step, and the heads that QK-clip scales.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "nanotron/base/error.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/tensor/pinned_memory.hpp"
#include "trainer/state/statistics_parts.hpp"

namespace nanotron::trainer {
namespace {

constexpr std::array score_columns{
    io::ExtraColumn{"max_attention_score", "1",
                    "Largest score of attention in the step, before softmax, over layers, heads and tokens."},
    io::ExtraColumn{"clipped_heads", "heads",
                    "Query heads of all layers whose largest score in the step was above optimizer%qk_clip."}};

class ScoreMaximaMonitor final : public StatisticsMonitor {
 public:
  ScoreMaximaMonitor(double tau, comm::Group& pp, Device& device, const nn::ScoreMaxima& maxima)
      : tau_(tau), pp_(pp), device_(device), maxima_(maxima), copy_(size()), host_(copy_.span().data(), size()) {}

  void start(index_t) override {
    maxima_.take(device_);
    if (device_.is_planning()) return;
    Kokkos::deep_copy(device_.exec(), host_, Vector<const double>(maxima_.of_step().data(), size()));
  }

  void collect(double, std::span<double> values) override {
    double most = std::numeric_limits<double>::lowest(), clipped = 0.0;
    for (const double score : copy_.span()) {
      most = std::max(most, score);
      clipped += score > tau_ ? 1.0 : 0.0;
    }
    NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &most, 1, MPI_DOUBLE, MPI_MAX, pp_.mpi()));
    NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &clipped, 1, MPI_DOUBLE, MPI_SUM, pp_.mpi()));
    values[0] = most;
    values[1] = clipped;
  }

 private:
  std::size_t size() const { return static_cast<std::size_t>(elements_of(maxima_.of_step())); }

  double tau_;
  comm::Group& pp_;
  Device& device_;
  nn::ScoreMaxima maxima_;
  PinnedArray<double> copy_;
  Kokkos::View<double*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged> host_;
};

}  // namespace

std::span<const io::ExtraColumn> score_maxima_columns(const deck::Config& config) {
  if (config.optimizer.qk_clip == 0.0) return {};
  return score_columns;
}

std::string score_maxima_text(const deck::Config&, std::span<const double> values) {
  return fmt::format("  max score {:.2f}  clipped heads {:.0f}", values[0], values[1]);
}

template <class T>
std::unique_ptr<StatisticsMonitor> make_score_maxima_monitor(const deck::Config& config, comm::ProcessGrid& grid,
                                                             Device& device, const TrainingState<T>& state) {
  return std::make_unique<ScoreMaximaMonitor>(config.optimizer.qk_clip, grid.pp(), device, state.score_maxima);
}

#define NANOTRON_INSTANTIATE(T)                                                                                  \
  template std::unique_ptr<StatisticsMonitor> make_score_maxima_monitor(const deck::Config&, comm::ProcessGrid&, \
                                                                        Device&, const TrainingState<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::trainer
