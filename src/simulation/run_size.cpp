#include "nanotron/simulation/run_size.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "nanotron/base/error.hpp"
#include "nanotron/model/cost.hpp"
#include "nanotron/trainer/start/deck_features.hpp"
#include "simulation/grid_options.hpp"
#include "simulation/tables.hpp"

namespace nanotron::simulation {
namespace {

constexpr double seconds_per_day = 86400.0;
constexpr int max_ranks = 1 << 17;

class Sizes {
 public:
  Sizes(const std::string& text, const std::string& name, const std::vector<std::string>& overrides,
        const deck::Machine& machine, const RunTarget& target, const SearchLimits& limits)
      : text_(text), name_(name), overrides_(overrides), machine_(machine), target_(target), limits_(limits) {}

  int node() const { return std::max(1, machine_.node.ranks); }

  // Whole nodes that would be too few at the peak of the machine; the largest size where it is more than that.
  int fewest_nodes() const {
    deck::Config config = trainer::read_deck_text(text_, name_, on_one_rank(overrides_));
    trainer::resolve(config, 1);
    const double flops = target_.tokens * model::training_flops_per_token(config);
    const double of_node = node() * machine_.peak(config.precision.compute) * target_.days * seconds_per_day;
    return std::max(1, static_cast<int>(std::min(flops / of_node, 1.0 * max_ranks)));
  }

  // Whether so many nodes are fast enough.
  bool try_nodes(int nodes) {
    SizedRun run{.ranks = nodes * node()};
    if (std::optional<GridCandidate> grid = search_fastest(run.ranks)) {
      run.has_grid = true;
      run.days = target_.tokens / grid->prediction.tokens_per_second() / seconds_per_day;
      run.node_hours = 24.0 * run.days * grid->prediction.nodes;
      run.kilowatt_hours = 24.0 * run.days * grid->prediction.watts / 1e3;
      run.grid = std::move(*grid);
    }
    runs_.push_back(std::move(run));
    return runs_.back().has_grid && runs_.back().days <= target_.days;
  }

  std::vector<SizedRun> by_ranks() && {
    std::ranges::sort(runs_, {}, &SizedRun::ranks);
    return std::move(runs_);
  }

 private:
  std::optional<GridCandidate> search_fastest(int ranks) const {
    try {
      return search_grids(text_, name_, overrides_, ranks, machine_, limits_).best.front();
    } catch (const Error& error) {
      if (error.exit_code() != ExitCode::deck_error) throw;
      return std::nullopt;
    }
  }

  std::string text_, name_;
  std::vector<std::string> overrides_;
  const deck::Machine& machine_;
  RunTarget target_;
  SearchLimits limits_;
  std::vector<SizedRun> runs_;
};

int power_of_two_from(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

bool is_within(const SizedRun& run, const RunTarget& target) { return run.has_grid && run.days <= target.days; }

}  // namespace

std::vector<SizedRun> size_run(const std::string& text, const std::string& name,
                               const std::vector<std::string>& overrides, const deck::Machine& machine,
                               const RunTarget& target, const SearchLimits& limits) {
  Sizes sizes(text, name, overrides, machine, target, limits);
  int enough = power_of_two_from(sizes.fewest_nodes());
  while (enough * sizes.node() > max_ranks || !sizes.try_nodes(enough)) {
    enough *= 2;
    if (enough * sizes.node() > max_ranks) {
      fail(ExitCode::deck_error,
           {.what = fmt::format("no {} ranks of {} or fewer train {:.3g} tokens in {:g} days", max_ranks, machine.name,
                                target.tokens, target.days),
            .where = name,
            .change = "more days, fewer tokens, or a larger global_batch_size, which dp divides"});
    }
  }
  for (int step = enough / 4, too_few = enough / 2; step >= 1 && step >= enough / 8; step /= 2) {
    if (enough - too_few <= step) continue;
    (sizes.try_nodes(too_few + step) ? enough : too_few) = too_few + step;
  }
  return std::move(sizes).by_ranks();
}

const SizedRun& smallest(const std::vector<SizedRun>& runs, const RunTarget& target) {
  const auto found = std::ranges::find_if(runs, [&](const SizedRun& run) { return is_within(run, target); });
  NANOTRON_REQUIRE(found != runs.end(), "none of {} sizes is within the target", runs.size());
  return *found;
}

std::string describe(const std::vector<SizedRun>& runs, const RunTarget& target, const deck::Machine& machine) {
  std::string text = fmt::format("{:.4g} tokens in {:g} days on {}\n", target.tokens, target.days, machine.name);
  text += fmt::format("{:>8}{:>7}{:>6}{:>4}{:>4}{:>4}{:>4}{:>12}{:>8}{:>9}{:>13}{:>9}    {}\n", "ranks", "nodes", "dp",
                      "tp", "pp", "cp", "ep", "s per step", "MFU %", "days", "node-hours", "MWh", "waits");
  const SizedRun& best = smallest(runs, target);
  for (const SizedRun& run : runs) {
    if (!run.has_grid) {
      text += fmt::format("{:>8}  no grid of these ranks fits\n", run.ranks);
      continue;
    }
    const deck::ParallelConfig& p = run.grid.config.parallel;
    const StepPrediction& step = run.grid.prediction;
    const double peak = machine.peak(run.grid.config.precision.compute);
    text += fmt::format("{:>8}{:>7}{:>6}{:>4}{:>4}{:>4}{:>4}{:>12.3f}{:>8.1f}{:>9.2f}{:>13.0f}{:>9}{} {}\n", run.ranks,
                        step.nodes, p.dp, p.tp, p.pp, p.cp, p.ep, step.seconds,
                        100.0 * step.model_flops / step.seconds / peak, run.days, run.node_hours,
                        run.kilowatt_hours > 0.0 ? fmt::format("{:.1f}", run.kilowatt_hours / 1e3) : "-",
                        &run == &best ? " <" : "  ", waits_text(step));
  }
  text += fmt::format("the smallest: {} ranks, {} nodes, {:.2f} days, {:.0f} node-hours", best.ranks,
                      best.grid.prediction.nodes, best.days, best.node_hours);
  return text + (best.kilowatt_hours > 0.0 ? fmt::format(", {:.1f} MWh\n", best.kilowatt_hours / 1e3) : "\n");
}

}  // namespace nanotron::simulation
