// All statistics of a step.

#include "nanotron/base/types.hpp"
#include "nanotron/deck/config.hpp"
#include "trainer/state/statistics_parts.hpp"

namespace nanotron::trainer {
namespace {

template <class T>
struct Part {
  std::span<const io::ExtraColumn> (*columns)(const deck::Config& config);
  std::string (*text)(const deck::Config& config, std::span<const double> values);
  std::unique_ptr<StatisticsMonitor> (*monitor)(const deck::Config& config, comm::ProcessGrid& grid, Device& device,
                                                const TrainingState<T>& state);
};

// A row for each kind, in the order of their columns.
template <class T>
constexpr Part<T> parts[] = {{load_columns, load_text, make_load_monitor<T>},
                             {z_loss_columns, z_loss_text, make_z_loss_monitor<T>}};

// Calls f(part, first of its values, their number) for the parts that the run has.
template <class T, class F>
void for_each_part(const deck::Config& config, const F& f) {
  std::size_t first = 0;
  for (const Part<T>& part : parts<T>) {
    const std::size_t count = part.columns(config).size();
    if (count > 0) f(part, first, count);
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
  void collect(double targets, std::span<double> values) override {
    for (const Monitor& m : monitors_) m.monitor->collect(targets, values.subspan(m.first, m.count));
  }
  void after_update() override {
    for (const Monitor& m : monitors_) m.monitor->after_update();
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
  for (const Part<double>& part : parts<double>) {
    const auto columns = part.columns(config);
    all.insert(all.end(), columns.begin(), columns.end());
  }
  return all;
}

std::string statistics_text(const deck::Config& config, const io::ExtraValues& values) {
  std::string all;
  for_each_part<double>(config, [&](const Part<double>& part, std::size_t first, std::size_t count) {
    all += part.text(config, std::span(values).subspan(first, count));
  });
  return all;
}

template <class T>
std::unique_ptr<StatisticsMonitor> make_statistics_monitor(const deck::Config& config, comm::ProcessGrid& grid,
                                                           Device& device, const TrainingState<T>& state) {
  auto all = std::make_unique<Statistics>();
  for_each_part<T>(config, [&](const Part<T>& part, std::size_t first, std::size_t count) {
    all->add(part.monitor(config, grid, device, state), first, count);
  });
  return all;
}

#define NANOTRON_INSTANTIATE(T)                                                                                \
  template std::unique_ptr<StatisticsMonitor> make_statistics_monitor(const deck::Config&, comm::ProcessGrid&, \
                                                                      Device&, const TrainingState<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::trainer
