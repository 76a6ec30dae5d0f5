// All statistics of a step.

#include "nanotron/base/types.hpp"
#include "nanotron/deck/config.hpp"
#include "trainer/state/statistics_parts.hpp"

namespace nanotron::trainer {
namespace {

template <class T>
struct Statistic {
  std::span<const io::ExtraColumn> (*columns)(const deck::Config& config);
  std::string (*text)(const deck::Config& config, std::span<const double> values);
  std::unique_ptr<StatisticsMonitor> (*monitor)(const deck::Config& config, comm::ProcessGrid& grid, Device& device,
                                                const TrainingState<T>& state);
};

// A row for each kind, in the order of their columns.
template <class T>
constexpr Statistic<T> statistics[] = {{load_columns, load_text, make_load_monitor<T>},
                                       {z_loss_columns, z_loss_text, make_z_loss_monitor<T>},
                                       {later_tokens_columns, later_tokens_text, make_later_tokens_monitor<T>},
                                       {reward_columns, reward_text, make_reward_monitor<T>},
                                       {score_maxima_columns, score_maxima_text, make_score_maxima_monitor<T>}};

// Calls f(statistic, first of its values, their number) for the statistics that the run has.
template <class T, class F>
void for_each_statistic(const deck::Config& config, const F& f) {
  std::size_t first = 0;
  for (const Statistic<T>& statistic : statistics<T>) {
    const std::size_t count = statistic.columns(config).size();
    if (count > 0) f(statistic, first, count);
    first += count;
  }
}

class Statistics final : public StatisticsMonitor {
 public:
  void add(std::unique_ptr<StatisticsMonitor> monitor, std::size_t first, std::size_t count) {
    monitors_.push_back({std::move(monitor), first, count});
  }
  void start(index_t rows) override {
    for (const Monitor& m : monitors_) m.monitor->start(rows);
  }
  void collect(double terms, std::span<double> values) override {
    for (const Monitor& m : monitors_) m.monitor->collect(terms, values.subspan(m.first, m.count));
  }
  void after_update() override {
    for (const Monitor& m : monitors_) m.monitor->after_update();
  }
  std::string summary() override {
    std::string all;
    for (const Monitor& m : monitors_) all += m.monitor->summary();
    return all;
  }

 private:
  struct Monitor {
    std::unique_ptr<StatisticsMonitor> monitor;
    std::size_t first, count;  // of its values
  };
  std::vector<Monitor> monitors_;
};

}  // namespace

std::vector<io::ExtraColumn> statistics_columns(const deck::Config& config) {
  std::vector<io::ExtraColumn> all;
  for (const Statistic<double>& statistic : statistics<double>) {
    const auto columns = statistic.columns(config);
    all.insert(all.end(), columns.begin(), columns.end());
  }
  return all;
}

std::string statistics_text(const deck::Config& config, const io::ExtraValues& values) {
  std::string all;
  for_each_statistic<double>(config, [&](const Statistic<double>& statistic, std::size_t first, std::size_t count) {
    all += statistic.text(config, std::span(values).subspan(first, count));
  });
  return all;
}

template <class T>
std::unique_ptr<StatisticsMonitor> make_statistics_monitor(const deck::Config& config, comm::ProcessGrid& grid,
                                                           Device& device, const TrainingState<T>& state) {
  auto all = std::make_unique<Statistics>();
  for_each_statistic<T>(config, [&](const Statistic<T>& statistic, std::size_t first, std::size_t count) {
    all->add(statistic.monitor(config, grid, device, state), first, count);
  });
  return all;
}

#define NANOTRON_INSTANTIATE(T)                                                                                \
  template std::unique_ptr<StatisticsMonitor> make_statistics_monitor(const deck::Config&, comm::ProcessGrid&, \
                                                                      Device&, const TrainingState<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::trainer
