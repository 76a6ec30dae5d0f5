#include "nanotron/simulation/step_prediction.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "nanotron/base/error.hpp"
#include "nanotron/model/cost.hpp"
#include "nanotron/simulation/operation_time.hpp"
#include "nanotron/trainer/data/training_stages.hpp"
#include "nanotron/trainer/plan/kernel_time.hpp"
#include "nanotron/trainer/plan/plan.hpp"
#include "nanotron/trainer/plan/roofline.hpp"
#include "nanotron/trainer/state/training_state.hpp"

namespace nanotron::simulation {
namespace {

// The ranks of one pipeline, on the machine.
class MachineTimes {
 public:
  MachineTimes(const deck::Config& config, const deck::Machine& machine, const Software& software)
      : config_(config), machine_(machine), software_(software), shape_(comm::shape_of(config)) {
    const index_t tp = config.parallel.tp;
    sizes_ = {config.model.hidden_size, config.model.intermediate_size / tp};
    crowding_ = trainer::crowding(config, machine);
  }

  comm::GridCoordinate coordinate(int pp_rank) const { return trainer::coordinate_of_stage(config_, pp_rank); }

  RankWork work_of(const WorkList& list, int pp_rank) const {
    RankWork work{.list = &list, .kernels = {}, .launches = {}, .operations = {}};
    for (const WorkRow& row : list.rows()) {
      work.kernels.push_back(crowding_ * kernel_seconds(row, machine_, software_, sizes_));
      work.launches.push_back(host_launches(row, software_));
    }
    for (const comm::PlannedOperation& operation : list.operations()) {
      work.operations.push_back(time_of(operation, pp_rank));
    }
    return work;
  }

 private:
  std::vector<int> ranks_of(const comm::PlannedOperation& operation, int pp_rank) const {
    std::vector<int> ranks = comm::ranks_of_group(shape_, coordinate(pp_rank), operation.group);
    const bool is_message =
        operation.operation == comm::Operation::send || operation.operation == comm::Operation::receive;
    if (!is_message) return ranks;
    const int rank = comm::rank_of(shape_, coordinate(pp_rank));
    const auto me = static_cast<std::size_t>(std::ranges::find(ranks, rank) - ranks.begin());
    const std::size_t other = (operation.to_next ? me + 1 : me + ranks.size() - 1) % ranks.size();
    return {ranks[me], ranks[other]};
  }

  OperationTime time_of(const comm::PlannedOperation& operation, int pp_rank) const {
    if (operation.operation == comm::Operation::copy) {
      const int level = operation.group == comm::GroupKind::to_host ? 2 : 3;
      return {.seconds = trainer::copy_seconds(operation.bytes, machine_), .level = level, .latency = machine_.launch};
    }
    const GroupPlacement place = placement_of(ranks_of(operation, pp_rank), machine_);
    const int level = place.nodes > 1 ? 1 : 0;
    const bool is_exchange =
        operation.group == comm::GroupKind::ep && operation.operation == comm::Operation::all_to_all;
    const auto seconds = [&](double bytes) {
      if (!is_exchange || !software_.exchanges_by_node) {
        return collective_seconds(operation.operation, bytes, place, machine_);
      }
      return exchange_by_node_seconds(bytes, static_cast<double>(config_.model.moe.num_experts_per_tok), place,
                                      machine_, software_.exchange_rate);
    };
    const double latency = seconds(0.0);
    double time = (is_sum_of_gradients(operation) && software_.reduces_in_bf16 ? 0.5 : 1.0) *
                  (seconds(operation.bytes) - latency);
    const bool is_pipeline = operation.group == comm::GroupKind::pp && place.ranks == 2;
    if (is_pipeline && software_.scatters_messages && shape_.tp > 1) {
      time = seconds(operation.bytes / shape_.tp) - latency + gather_seconds(operation.bytes, pp_rank);
    }
    // Five sums of a layer with full recomputation, six where its last GEMM is repeated too.
    const bool is_sum = operation.group == comm::GroupKind::tp && operation.operation == comm::Operation::all_reduce;
    const double repeated = is_sum && software_.recomputes_whole_layers ? 6.0 / 5.0 : 1.0;
    const double factor = machine_.is_gpu ? repeated : repeated * crowding_;
    return {.seconds = factor * time,
            .level = level,
            .latency = factor * latency,
            .host_waits = is_exchange && software_.waits_for_counts && is_of_counts(operation)};
  }

  // An integer for each expert.
  bool is_of_counts(const comm::PlannedOperation& operation) const {
    return operation.bytes <= 8.0 * static_cast<double>(config_.model.moe.num_experts);
  }

  static bool is_sum_of_gradients(const comm::PlannedOperation& operation) {
    using comm::GroupKind;
    const bool is_sum =
        operation.operation == comm::Operation::all_reduce || operation.operation == comm::Operation::reduce_scatter;
    constexpr std::array replicas{GroupKind::data,        GroupKind::shard,        GroupKind::replicate,
                                  GroupKind::expert_data, GroupKind::expert_shard, GroupKind::expert_replicate};
    return is_sum && std::ranges::find(replicas, operation.group) != replicas.end();
  }

  double gather_seconds(double bytes, int pp_rank) const {
    const auto ranks = comm::ranks_of_group(shape_, coordinate(pp_rank), comm::GroupKind::tp);
    return collective_seconds(comm::Operation::all_gather, bytes, placement_of(ranks, machine_), machine_);
  }

  const deck::Config& config_;
  const deck::Machine& machine_;
  const Software& software_;
  comm::GridShape shape_;
  LayerSizes sizes_;
  double crowding_ = 1.0;
};

// How much longer the slowest of n GPUs takes than the mean: the expected largest of n normal deviates (Blom 1958).
double slowest_of(int n, const deck::Machine& machine) {
  const double above = 0.625 / (n + 0.25);
  double low = 0.0, high = 10.0;
  for (int i = 0; i < 60; ++i) {
    const double z = 0.5 * (low + high);
    (0.5 * std::erfc(z / std::sqrt(2.0)) > above ? low : high) = z;
  }
  return machine.gemm_model.spread * low;
}

double flops_of(const WorkList& list) {
  double flops = 0.0;
  for (const WorkRow& row : list.rows()) flops += static_cast<double>(row.calls) * row.work.flops;
  return flops;
}

deck::Config with_micro_batches(const deck::Config& config, std::int64_t micro_batches) {
  deck::Config shorter = config;
  shorter.data.global_batch_size = micro_batches * config.data.micro_batch_size * config.parallel.dp;
  return shorter;
}

}  // namespace

StepPrediction predict_step(const deck::Config& config, const deck::Machine& machine, const Software& software) {
  if (built_for == Processor::gpu && !machine.is_gpu) {
    fail(ExitCode::deck_error, {.what = "this program was built for GPUs and predicts steps on them only",
                                .found = machine.name + ", processor = 'cpu'",
                                .change = "the program of a CPU build predicts both"});
  }
  const MachineTimes times(config, machine, software);
  const comm::GridShape shape = comm::shape_of(config);
  const auto stages = static_cast<std::size_t>(shape.pp);
  std::vector<WorkList> lists;
  std::vector<RankWork> works;
  lists.reserve(stages);
  for (int r = 0; r < shape.pp; ++r) {
    lists.push_back(trainer::step_work(config, times.coordinate(r), trainer::processor_of(machine), EventOrder::kept));
    works.push_back(times.work_of(lists.back(), r));
  }
  const std::vector<RankTimes> ranks =
      simulate(works, {.overlaps = machine.is_gpu,
                       .overlaps_tensor_parallel = software.overlaps_tensor_parallel,
                       .overlaps_expert_parallel = !software.waits_for_exchanges,
                       .collective_share = machine.collective_share,
                       .slowest = slowest_of(shape.size(), machine),
                       .tensor_parallel_pieces = software.rings_beside_gemms ? shape.tp : 1,
                       .launch_seconds = software.launch});
  StepPrediction p{.tokens = static_cast<double>(trainer::tokens_per_step(config)), .ranks = shape.size()};
  for (std::size_t r = 0; r < stages; ++r) {
    p.seconds = std::max(p.seconds, ranks[r].end);
    p.hardware_flops += flops_of(lists[r]) / static_cast<double>(stages);
    for (std::size_t s = 0; s < shares; ++s) p.shares[s] += ranks[r].seconds[s] / static_cast<double>(stages);
  }
  p.model_flops = p.tokens * model::training_flops_per_token(config) / shape.size();
  p.nodes = machine.node.ranks == 0 ? 1 : (shape.size() + machine.node.ranks - 1) / machine.node.ranks;
  p.watts = machine.node.watts * p.nodes;
  return p;
}

StepPrediction estimate_step(const deck::Config& config, const deck::Machine& machine, const Software& software) {
  const std::int64_t pp = config.parallel.pp,
                     all = config.data.global_batch_size / config.parallel.dp / config.data.micro_batch_size;
  const std::int64_t few = all % pp + 2 * pp;
  if (all <= few + 2 * pp) return predict_step(config, machine, software);
  StepPrediction a = predict_step(with_micro_batches(config, few), machine, software);
  const StepPrediction b = predict_step(with_micro_batches(config, few + pp), machine, software);
  const double more = static_cast<double>(all - few) / static_cast<double>(pp);
  const auto extend = [&](double& value, double other) { value += more * (other - value); };
  extend(a.seconds, b.seconds);
  for (std::size_t s = 0; s < shares; ++s) extend(a.shares[s], b.shares[s]);
  extend(a.tokens, b.tokens);
  extend(a.model_flops, b.model_flops);
  extend(a.hardware_flops, b.hardware_flops);
  return a;
}

std::string describe(const StepPrediction& p, const deck::Config& config, const deck::Machine& machine) {
  std::string text =
      fmt::format("timeline of a step on {} ranks, {} nodes of {}, simulated:\n", p.ranks, p.nodes, machine.name);
  for (std::size_t s = 0; s < shares; ++s) {
    if (p.shares[s] <= 1e-9 * p.seconds) continue;
    text += fmt::format("  {:<21}{:>10.3f} ms{:>9.1f} %\n", name_of(static_cast<Share>(s)), 1e3 * p.shares[s],
                        100.0 * p.shares[s] / p.seconds);
  }
  const double peak = machine.peak(config.precision.compute);
  text += fmt::format("  {:<21}{:>10.3f} ms\n", "step", 1e3 * p.seconds);
  text += fmt::format("  {:.0f} tokens/s, MFU {:.1f} %, {:.1f} TFLOP/s per rank, {:.1f} with recomputation\n",
                      p.tokens_per_second(), 100.0 * p.model_flops / p.seconds / peak, p.model_flops / p.seconds / 1e12,
                      p.hardware_flops / p.seconds / 1e12);
  const double hours = static_cast<double>(config.run.steps) * p.seconds / 3600.0;
  text += fmt::format("  the run: {} steps, {:.2f} hours, {:.2f} node-hours", config.run.steps, hours, hours * p.nodes);
  return text + (p.watts > 0.0 ? fmt::format(", {:.2f} kWh\n", hours * p.watts / 1e3) : "\n");
}

namespace {

// A timeline for each stage of training, of its own steps, and what they take together.
std::string describe_stages(const trainer::TrainingStages& stages, const deck::Machine& machine) {
  std::string text;
  double hours = 0.0, node_hours = 0.0, kilowatt_hours = 0.0;
  for (std::size_t k = 0; k < stages.size(); ++k) {
    deck::Config config = stages.config(k);
    const trainer::TrainingStages::Point begin = stages.begin_of(k);
    config.run.steps = std::max<std::int64_t>(stages.end_of(k, begin).step - begin.step, 0);
    const StepPrediction p = predict_step(config, machine);
    const double of_stage = static_cast<double>(config.run.steps) * p.seconds / 3600.0;
    hours += of_stage;
    node_hours += of_stage * p.nodes;
    kilowatt_hours += of_stage * p.watts / 1e3;
    text += fmt::format("{}: {}", stages.name(k), describe(p, config, machine));
  }
  text += fmt::format("all stages: {:.2f} hours, {:.2f} node-hours", hours, node_hours);
  return text + (kilowatt_hours > 0.0 ? fmt::format(", {:.2f} kWh\n", kilowatt_hours) : "\n");
}

}  // namespace

std::string describe_prediction(const deck::Config& config, const deck::Machine& machine) {
  if (machine.node.ranks == 0 && comm::shape_of(config).size() > 1) {
    return fmt::format("no timeline: the file of {} has no &node\n", machine.name);
  }
  const trainer::TrainingStages stages(config);
  if (stages.has_several()) return describe_stages(stages, machine);
  return describe(predict_step(config, machine), config, machine);
}

// The first stage keeps most micro-batches, the last has the head: they are looked at first.
double memory_bytes(const deck::Config& config, const deck::Machine& machine, double limit) {
  const comm::GridShape shape = comm::shape_of(config);
  std::vector<int> stages{0};
  if (shape.pp > 1) stages.push_back(shape.pp - 1);
  for (int r = 1; r < shape.pp - 1; ++r) stages.push_back(r);
  double most = 0.0;
  for (const int r : stages) {
    const trainer::StepPlan plan = trainer::plan_step(config, {.pp = r}, trainer::processor_of(machine));
    most = std::max(most, static_cast<double>(plan.memory.total()));
    if (most > limit) break;
  }
  return most;
}

bool fits(const deck::Config& config, const deck::Machine& machine) {
  const double limit = machine.buffer_limit(), memory = memory_bytes(config, machine, limit);
  return memory <= limit && memory + trainer::nccl_memory_of(config, {}, machine).bytes <= limit;
}

}  // namespace nanotron::simulation
