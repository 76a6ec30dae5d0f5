#include "benches.hpp"

#include <fmt/format.h>

#include <memory>

#include "nanotron/model/cost.hpp"
#include "nanotron/tensor/stream_timers.hpp"
#include "nanotron/trainer/data/token_files.hpp"
#include "nanotron/trainer/loop/trainer.hpp"
#include "nanotron/trainer/plan/plan.hpp"
#include "nanotron/trainer/start/gemm_algorithms.hpp"
#include "nanotron/trainer/state/run_resources.hpp"

namespace nanotron::apps::bench {
namespace {

constexpr double giga = 1e9;

// Communication of a group in the measured steps.
struct Share {
  comm::Traffic used;
  void add(const comm::Traffic& before, const comm::Traffic& after) {
    used.calls += after.calls - before.calls;
    used.bytes += after.bytes - before.bytes;
    used.seconds += after.seconds - before.seconds;
  }
};

struct GroupShare {
  comm::GroupKind kind;
  comm::Group* group;
  Share share{};
  double alone = 0.0;  // seconds of as many all-reduces with all ranks ready; 0: not measured
};

// By GroupKind.
constexpr const char* group_names[] = {"world",
                                       "data parallel",
                                       "shard group",
                                       "replicate group",
                                       "expert data parallel",
                                       "expert shard group",
                                       "expert replicate group",
                                       "expert parallel",
                                       "expert parallel, across nodes",
                                       "expert parallel, in a node",
                                       "tensor parallel",
                                       "context parallel",
                                       "context parallel, all-to-all",
                                       "context parallel, ring",
                                       "pipeline",
                                       "tied embedding"};

// Each group once; those of the tensor- and the data-parallel axis even where they are one rank.
std::vector<GroupShare> groups_of(comm::ProcessGrid& grid) {
  std::vector<GroupShare> groups;
  grid.for_each_group([&](comm::Group& group, comm::GroupKind kind) {
    using enum comm::GroupKind;
    const bool is_optional = kind == ep || kind == cp || kind == pp || kind == embedding;
    if (!is_optional || group.size() > 1) groups.push_back({kind, &group});
  });
  return groups;
}

struct Record {
  ScalarType type = ScalarType::fp32;
  std::vector<double> ceilings;     // per round: GEMM peak in GFLOP/s, all ranks together
  std::vector<double> rates;        // per step: model GFLOP/s, all ranks together
  std::vector<double> round_steps;  // per round: median seconds of a step
  std::vector<double> seconds;      // per step
  std::vector<double> shares;       // per step: rate in % of the GEMM peak of its round
  std::vector<GroupShare> groups;
  double exposed = 0.0;  // host seconds spent waiting for the gradient reduction
  std::vector<TimerRow> regions;
  std::size_t planned_bytes = 0;
};

// Seconds of as many all-reduces of the mean size, with all ranks ready.
template <class T>
double seconds_alone(const Bench& bench, Device& device, comm::Group& group, const comm::Traffic& used) {
  if (group.size() == 1 || used.calls == 0) return 0.0;
  const std::size_t n = used.bytes / used.calls / sizeof(T);
  const Kokkos::View<T*, MemorySpace> data("data", n);  // zeros: sums stay zero
  const Spread one = seconds_of(device, bench.grid.world(), bench.options.seconds,
                                [&] { comm::all_reduce(group, data.data(), n, comm::ReduceOp::sum, device.stream()); });
  return one.median * static_cast<double>(used.calls);
}

class Runner {
 public:
  virtual ~Runner() = default;
  virtual void step() = 0;
  virtual void begin() = 0;                    // discards the warm-up
  virtual void round(std::int64_t steps) = 0;  // GEMM peak, then steps
  virtual const Record& finish() = 0;
};

deck::Config with_type(deck::Config config, ScalarType type) {
  config.precision.compute = type;
  return config;
}

// Of the device, before a model is made on it.
struct GemmAlgorithms {
  GemmAlgorithms(const deck::Config& config, Device& device, comm::Group& world, Log& log) {
    trainer::use_gemm_algorithms(config, device, world, log);
  }
};

template <class T>
class RunnerOf final : public Runner {
 public:
  RunnerOf(const Bench& bench, ScalarType type)
      : bench_(bench),
        config_(with_type(bench.config, type)),
        log_(false),
        device_(*timers_, trainer::gemm_mode_of(bench.config)),
        ceiling_device_(ceiling_timers_),
        algorithms_(config_, device_, bench.grid.world(), log_),
        files_(config_),
        loaders_(trainer::make_loaders(config_, files_, bench.grid.coordinate())),
        memory_(config_, bench.grid, trainer::plan_step(config_, bench.grid.coordinate()).memory),
        trainer_(config_, {}, bench.grid, device_, memory_.arena(), loaders_, log_) {
    record_.type = type;
    record_.planned_bytes = memory_.arena().plan().total();
    record_.groups = groups_of(bench.grid);
  }

  void step() override {
    trainer_.train_step();
    device_.fence();
  }
  void begin() override {
    timers_->reset();
    exposed_before_ = trainer_.exposed_communication_seconds();
  }
  void round(std::int64_t steps) override;
  const Record& finish() override {
    record_.regions = timers_->rows();
    for (GroupShare& g : record_.groups) {
      if (g.kind == comm::GroupKind::tp) g.alone = seconds_alone<T>(bench_, ceiling_device_, *g.group, g.share.used);
      if (g.kind == comm::GroupKind::data)
        g.alone = seconds_alone<master_t<T>>(bench_, ceiling_device_, *g.group, g.share.used);
    }
    record_.exposed = trainer_.exposed_communication_seconds() - exposed_before_;
    return record_;
  }

 private:
  const Bench& bench_;
  deck::Config config_;
  Log log_;
  std::unique_ptr<Timers> timers_ = make_stream_timers(stream_of(ExecutionSpace()));
  Timers ceiling_timers_;
  Device device_, ceiling_device_;
  GemmAlgorithms algorithms_;
  trainer::TokenFiles files_;
  trainer::Loaders loaders_;
  trainer::RunMemory memory_;
  trainer::Trainer<T> trainer_;
  Record record_;
  double exposed_before_ = 0.0;
};

template <class T>
void RunnerOf<T>::round(std::int64_t steps) {
  comm::ProcessGrid& grid = bench_.grid;
  const double flops =
      model::training_flops_per_token(config_) * static_cast<double>(trainer::tokens_per_step(config_));
  const double ceiling = matrix_ceiling<T>(bench_, ceiling_device_);
  record_.ceilings.push_back(ceiling / giga);
  std::vector<double> seconds;
  for (std::int64_t i = 0; i < steps; ++i) {
    comm::barrier(grid.world());
    std::vector<comm::Traffic> before;
    for (const GroupShare& g : record_.groups) before.push_back(g.group->traffic());
    const double begin = wall_seconds();
    step();
    const double took = wall_seconds() - begin;
    for (std::size_t g = 0; g < before.size(); ++g) {
      record_.groups[g].share.add(before[g], record_.groups[g].group->traffic());
    }
    seconds.push_back(comm::max(grid.world(), took));
    record_.rates.push_back(flops / seconds.back() / giga);
    record_.shares.push_back(100.0 * flops / seconds.back() / ceiling);
  }
  record_.seconds.insert(record_.seconds.end(), seconds.begin(), seconds.end());
  record_.round_steps.push_back(spread_of(seconds).median);
}

std::string ranged(const Spread& s, int digits) {
  return fmt::format("{:.{}f} ({:.{}f} - {:.{}f})", s.median, digits, s.min, digits, s.max, digits);
}

double communication_seconds(const Record& r) {
  double sum = 0.0;
  for (const GroupShare& g : r.groups) sum += g.share.used.seconds;
  return sum;
}

Table speed_table(const Bench& bench, const std::vector<const Record*>& records) {
  Table table{.key = "step",
              .title = fmt::format("Training steps: median (min - max) of {} steps, in turn with the GEMM rate",
                                   records[0]->seconds.size()),
              .columns = {{"type", "type"},
                          {"ms/step", "ms_text"},
                          {"tokens/s", "tokens_per_second", 0},
                          {"model GFLOP/s", "gflops_text"},
                          {"GEMM GFLOP/s", "ceiling_text"},
                          {"share %", "share_text"},
                          {"comm %", "moving", 2},
                          {"comm + wait %", "communication", 2},
                          {"planned MiB", "planned_mib", 0}},
              .rows = {},
              .note =
                  "GEMM: all ranks at once, the better of orders 1024 and 2048; comm: the step's collectives "
                  "with all ranks ready; comm + wait: in the step, of the rank that waits most"};
  const auto tokens = static_cast<double>(bench.config.data.global_batch_size * bench.config.data.sequence_length);
  nlohmann::json numbers = nlohmann::json::array();
  for (const Record* r : records) {
    double total = 0.0;
    for (const double s : r->seconds) total += s;
    double alone = 0.0;
    for (const GroupShare& g : r->groups) alone += g.alone;
    const double moving = 100.0 * comm::max(bench.grid.world(), alone) / total;
    const double share = 100.0 * comm::max(bench.grid.world(), communication_seconds(*r)) / total;
    std::vector<double> milliseconds;
    for (const double s : r->seconds) milliseconds.push_back(1e3 * s);
    table.rows.push_back({name_of(r->type), ranged(spread_of(milliseconds), 1), tokens / spread_of(r->seconds).median,
                          ranged(spread_of(r->rates), 1), ranged(spread_of(r->ceilings), 1),
                          ranged(spread_of(r->shares), 1), moving, share,
                          static_cast<double>(r->planned_bytes) / 1048576.0});
    numbers.push_back({{"type", name_of(r->type)},
                       {"seconds", r->seconds},
                       {"gflops", r->rates},
                       {"ceiling_gflops", r->ceilings},
                       {"share", r->shares},
                       {"moving_share", moving},
                       {"communication_share", share}});
  }
  bench.report.set("step_samples", std::move(numbers));
  return table;
}

Table region_table(const Record& r) {
  double total = 0.0;
  for (const double s : r.seconds) total += s;
  const auto steps = static_cast<double>(r.seconds.size());
  std::vector<TimerRow> rows = r.regions;
  std::ranges::stable_sort(rows, [](const TimerRow& a, const TimerRow& b) { return a.exclusive > b.exclusive; });
  Table table{.key = fmt::format("regions_{}", name_of(r.type)),
              .title = fmt::format("Where a step's time goes, {} on rank 0", name_of(r.type)),
              .columns = {{"region", "region"},
                          {"calls/step", "calls"},
                          {"ms inclusive", "ms_inclusive", 2},
                          {"ms exclusive", "ms_exclusive", 2},
                          {"share %", "share"}},
              .rows = {},
              .note =
                  "exclusive time of forward, loss and backward: collectives inside layers and the work between "
                  "kernels"};
  for (const TimerRow& row : rows) {
    if (row.calls == 0) continue;
    table.rows.push_back({row.name, static_cast<double>(row.calls) / steps, 1e3 * row.inclusive / steps,
                          1e3 * row.exclusive / steps, 100.0 * row.exclusive / total});
  }
  return table;
}

Table communication_table(const Bench& bench, const Record& r) {
  const auto steps = static_cast<double>(r.seconds.size());
  double total = 0.0;
  for (const double s : r.seconds) total += s;
  Table table{.key = fmt::format("communication_{}", name_of(r.type)),
              .title = fmt::format("Communication of a step, {}", name_of(r.type)),
              .columns = {{"group", "group"},
                          {"by", "path"},
                          {"calls/step", "calls"},
                          {"MB/step", "megabytes", 2},
                          {"ms ready", "ms_alone", 2},
                          {"ms min rank", "ms_least", 2},
                          {"ms max rank", "ms_most", 2},
                          {"share % ready", "share_alone", 2},
                          {"share % max", "share_most", 2}},
              .rows = {},
              .note =
                  "ready: the same number of all-reduces of the mean size with all ranks ready; min and max: host time "
                  "in the step, including the wait for slower ranks"};
  const auto add = [&](const char* name, const std::string& path, const comm::Traffic& t, double alone) {
    const double least = comm::min(bench.grid.world(), t.seconds);
    const double most = comm::max(bench.grid.world(), t.seconds);
    table.rows.push_back({name, path, static_cast<double>(t.calls) / steps, static_cast<double>(t.bytes) / 1e6 / steps,
                          1e3 * alone / steps, 1e3 * least / steps, 1e3 * most / steps, 100.0 * alone / total,
                          100.0 * most / total});
  };
  for (const GroupShare& g : r.groups)
    add(group_names[static_cast<std::size_t>(g.kind)], g.group->path(), g.share.used, g.alone);
  add("data parallel, exposed", "", {.calls = 0, .bytes = 0, .seconds = r.exposed}, 0.0);
  return table;
}

void add_speed_ups(const Bench& bench, const std::vector<const Record*>& records) {
  Table table{.key = "speed_up",
              .title = fmt::format("Speed-up over {}, per round", name_of(records[0]->type)),
              .columns = {{"type", "type"}, {"step", "step", 2}, {"min", "least", 2}, {"max", "most", 2}},
              .rows = {}};
  for (std::size_t i = 1; i < records.size(); ++i) {
    std::vector<double> ratios;
    for (std::size_t round = 0; round < records[i]->round_steps.size(); ++round) {
      ratios.push_back(records[0]->round_steps[round] / records[i]->round_steps[round]);
    }
    const Spread s = spread_of(std::move(ratios));
    table.rows.push_back({name_of(records[i]->type), s.median, s.min, s.max});
  }
  bench.report.add(table);
}

}  // namespace

void measure_steps(const Bench& bench, const std::vector<ScalarType>& types) {
  std::vector<std::unique_ptr<Runner>> runners;
  for (const ScalarType type : types) {
    with_scalar_type(
        type, [&]<class T>(std::type_identity<T>) { runners.push_back(std::make_unique<RunnerOf<T>>(bench, type)); });
  }
  for (const auto& runner : runners) {
    runner->step();  // touches memory, builds primitives
    runner->step();
    runner->begin();
  }
  for (int round = 0; round < bench.options.rounds; ++round) {
    for (const auto& runner : runners) runner->round(bench.options.steps);
  }
  std::vector<const Record*> records;
  for (const auto& runner : runners) records.push_back(&runner->finish());
  bench.report.add(speed_table(bench, records));
  if (records.size() > 1) add_speed_ups(bench, records);
  for (const Record* record : records) {
    bench.report.add(region_table(*record));
    bench.report.add(communication_table(bench, *record));
  }
}

}  // namespace nanotron::apps::bench
