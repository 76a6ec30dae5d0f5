// The implicit rewards of pairs of answers.

#include <fmt/format.h>

#include <array>

#include "nanotron/base/types.hpp"
#include "nanotron/deck/config.hpp"
#include "trainer/state/statistics_parts.hpp"

namespace nanotron::trainer {
namespace {

constexpr std::array reward_column{
    io::ExtraColumn{"rewards_chosen", "1",
                    "Mean over pairs of beta times the log-probability of the chosen answer less that of the reference "
                    "model."},
    io::ExtraColumn{"rewards_rejected", "1", "The same of the rejected answers."},
    io::ExtraColumn{"rewards_accuracy", "1", "Share of the pairs whose chosen answer has the larger reward."},
    io::ExtraColumn{"rewards_margin", "1", "rewards_chosen less rewards_rejected."}};

class Rewards final : public StatisticsMonitor {
 public:
  explicit Rewards(std::vector<std::unique_ptr<StatisticsMonitor>> means) : means_(std::move(means)) {}

  void start(index_t tokens) override {
    for (const auto& mean : means_) mean->start(tokens);
  }
  void collect(double pairs, std::span<double> values) override {
    for (std::size_t i = 0; i < means_.size(); ++i) means_[i]->collect(pairs, values.subspan(i, 1));
    values.back() = values[0] - values[1];
  }

 private:
  std::vector<std::unique_ptr<StatisticsMonitor>> means_;
};

}  // namespace

std::vector<AuxiliaryRows> reward_rows(const deck::Config& config, Arena& arena) {
  std::vector<AuxiliaryRows> rows;
  if (config.preference.beta == 0.0) return rows;
  for (std::size_t i = 0; i + 1 < reward_column.size(); ++i)
    rows.emplace_back(arena, config.data.global_batch_size / config.parallel.dp);
  return rows;
}

std::span<const io::ExtraColumn> reward_columns(const deck::Config& config) {
  if (config.preference.beta == 0.0) return {};
  return reward_column;
}

std::string reward_text(const deck::Config&, std::span<const double> values) {
  return fmt::format("  margin {:.4f}  accuracy {:.3f}", values[3], values[2]);
}

template <class T>
std::unique_ptr<StatisticsMonitor> make_reward_monitor(const deck::Config& config, comm::ProcessGrid& grid,
                                                       Device& device, const TrainingState<T>& state) {
  std::vector<std::unique_ptr<StatisticsMonitor>> means;
  const index_t tokens = sequence_layout(config)[grid.cp_rank()].length();
  for (const AuxiliaryRows& rows : state.rewards)
    means.push_back(make_auxiliary_mean(1.0, 1, grid, device, rows, tokens));
  return std::make_unique<Rewards>(std::move(means));
}

#define NANOTRON_INSTANTIATE(T)                                                                                     \
  template std::unique_ptr<StatisticsMonitor> make_reward_monitor(const deck::Config&, comm::ProcessGrid&, Device&, \
                                                                  const TrainingState<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::trainer
