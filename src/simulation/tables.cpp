#include "simulation/tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "nanotron/simulation/grid_search.hpp"
#include "nanotron/simulation/run_size.hpp"

namespace nanotron::simulation {

namespace {

// The largest first.
std::string shares_text(const StepPrediction& p, Share first) {
  std::vector<std::pair<double, std::string>> all;
  for (auto s = static_cast<std::size_t>(first); s <= static_cast<std::size_t>(Share::pipeline); ++s) {
    const double percent = 100.0 * p.shares[s] / p.seconds;
    const std::string_view name = name_of(static_cast<Share>(s));
    if (percent >= 1.0) all.emplace_back(-percent, name.substr(0, name.find(',')));
  }
  std::ranges::sort(all);
  std::string text;
  for (const auto& [percent, name] : all) text += fmt::format("{}{} {:.0f}", text.empty() ? "" : ", ", name, -percent);
  return text.empty() ? "-" : text;
}

}  // namespace

std::string waits_text(const StepPrediction& p) { return shares_text(p, Share::tensor_parallel); }
std::string parts_text(const StepPrediction& p) { return shares_text(p, Share::gemm); }

namespace {

// "tp, exposed" -> "tp_exposed".
std::string column_of(Share share) {
  std::string name(name_of(share));
  std::erase(name, ',');
  std::ranges::replace(name, ' ', '_');
  return name;
}

struct Cost {
  double node_hours = 0.0, kilowatt_hours = 0.0;
};
Cost of_seconds(const StepPrediction& p, double seconds) {
  const double hours = seconds / 3600.0;
  return {hours * p.nodes, hours * p.watts / 1e3};
}

}  // namespace

std::string csv_names() {
  std::string text =
      "ranks,nodes,dp,tp,pp,cp,ep,micro_batch,zero_stage,recompute,virtual_stages,memory_gb,seconds_per_step,"
      "tokens_per_second,mfu";
  for (std::size_t s = 0; s < shares; ++s) text += ',' + column_of(static_cast<Share>(s));
  return text;
}

std::string csv_of(const deck::Config& config, const StepPrediction& step, double memory, double peak) {
  const deck::ParallelConfig& p = config.parallel;
  std::string text =
      fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}", step.ranks, step.nodes, p.dp, p.tp, p.pp, p.cp, p.ep,
                  config.data.micro_batch_size, p.zero_stage, recompute_text(config), virtual_text(p), memory / 1e9,
                  step.seconds, step.tokens_per_second(), step.model_flops / step.seconds / peak);
  for (const double seconds : step.shares) text += fmt::format(",{}", seconds);
  return text;
}

std::string as_csv(const SearchResult& result, const deck::Machine& machine) {
  std::string text = csv_names() + ",node_hours,kilowatt_hours\n";
  for (const GridCandidate& c : result.best) {
    const Cost cost = of_seconds(c.prediction, static_cast<double>(c.config.run.steps) * c.prediction.seconds);
    text +=
        fmt::format("{},{},{}\n", csv_of(c.config, c.prediction, c.memory, machine.peak(c.config.precision.compute)),
                    cost.node_hours, cost.kilowatt_hours);
  }
  return text;
}

std::string as_csv(const std::vector<SizedRun>& runs, const deck::Machine& machine) {
  std::string text = csv_names() + ",node_hours,kilowatt_hours,days\n";
  for (const SizedRun& run : runs) {
    if (!run.has_grid) continue;
    const GridCandidate& c = run.grid;
    text +=
        fmt::format("{},{},{},{}\n", csv_of(c.config, c.prediction, c.memory, machine.peak(c.config.precision.compute)),
                    run.node_hours, run.kilowatt_hours, run.days);
  }
  return text;
}

}  // namespace nanotron::simulation
