#include "simulation/grid_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "nanotron/deck/config.hpp"
#include "nanotron/deck/table/parameters.hpp"
#include "nanotron/model/parameters/parameter_table.hpp"
#include "nanotron/model/parameters/sharding.hpp"
#include "nanotron/optim/optimizer.hpp"
#include "simulation/expert_options.hpp"

namespace nanotron::simulation {
namespace {

constexpr std::int64_t largest_micro_batch = 16, max_virtual_stages = 8, shortest_piece = 1024;
constexpr deck::Recompute recomputations[] = {deck::Recompute::none, deck::Recompute::selective, deck::Recompute::full};

// "parallel.pp_schedule=1f1b": a value as an override of a deck.
template <class E>
std::string override_with(const std::string& key, E deck::ParallelConfig::*member, E value) {
  deck::Config config;
  config.parallel.*member = value;
  return fmt::format("parallel.{}={}", key, std::get<std::string>(deck::parameter("parallel", key).get(config)));
}

std::vector<std::int64_t> divisors(std::int64_t n, std::int64_t most) {
  std::vector<std::int64_t> all;
  for (std::int64_t d = 1; d <= std::min(n, most); ++d) {
    if (n % d == 0) all.push_back(d);
  }
  return all;
}

// Calls f for every grid: degrees that multiply to `ranks`.
template <class F>
void for_each_grid(const deck::Config& base, int ranks, const deck::Machine& machine, const F& f) {
  const deck::ModelConfig& m = base.model;
  const std::int64_t in_node = machine.node.ranks == 0 ? ranks : machine.node.ranks;
  for (const std::int64_t tp : divisors(ranks, in_node)) {
    if (m.num_attention_heads % tp != 0) continue;
    for (const std::int64_t pp : divisors(ranks / tp, m.num_hidden_layers)) {
      for (const std::int64_t cp :
           divisors(ranks / tp / pp, std::max<std::int64_t>(1, base.data.sequence_length / shortest_piece))) {
        const std::int64_t dp = ranks / tp / pp / cp;
        if (base.data.global_batch_size % dp != 0) continue;
        for (const ExpertRanks& e : expert_ranks(m, dp, cp, tp))
          f(GridOptions{.dp = dp, .tp = tp, .pp = pp, .cp = cp, .ep = e.ep, .ep_over_tp = e.over_tp});
      }
    }
  }
}

// 1F1B; with a pipeline and a micro-batch for each rank also interleaved, and zero bubble with its two virtual stages.
template <class F>
void for_each_schedule(const deck::Config& base, GridOptions o, std::int64_t micro_batches, const F& f) {
  for (const std::int64_t v : divisors(base.model.num_hidden_layers / o.pp, max_virtual_stages)) {
    if (v > 1 && (o.pp == 1 || micro_batches < o.pp)) continue;
    o.virtual_stages = v;
    o.schedule = v > 1 ? deck::PpSchedule::interleaved_1f1b : deck::PpSchedule::one_f_one_b;
    f(o);
    if (v != 2) continue;
    o.schedule = deck::PpSchedule::zero_bubble;
    f(o);
  }
}

// What the deck says; or also the host's, where the machine's file tells the rate of the link.
std::vector<deck::StateMemory> memories_of(const deck::Config& base, const deck::Machine& machine) {
  using enum deck::StateMemory;
  if (base.optimizer.state_memory == host) return {host};
  return machine.node.host_link > 0.0 ? std::vector{device, host} : std::vector{device};
}

template <class F>
void for_each_memory_saving(GridOptions o, const std::vector<deck::StateMemory>& memories, const F& f) {
  for (const int zero : {0, 1, 2, 3}) {
    if (zero > 0 && o.dp * o.cp == 1) continue;
    for (const deck::Recompute recompute : recomputations) {
      if (o.schedule == deck::PpSchedule::zero_bubble && recompute != deck::Recompute::none) continue;
      o.zero_stage = zero;
      o.recompute = recompute;
      for (const deck::StateMemory memory : memories) {
        o.states = memory;
        f(o);
      }
    }
  }
}

}  // namespace

std::vector<std::string> GridOptions::overrides() const {
  std::vector<std::string> all{fmt::format("parallel.dp={}", dp),
                               fmt::format("parallel.tp={}", tp),
                               fmt::format("parallel.pp={}", pp),
                               fmt::format("parallel.cp={}", cp),
                               fmt::format("data.micro_batch_size={}", micro_batch),
                               fmt::format("parallel.zero_stage={}", zero_stage),
                               override_with("recompute", &deck::ParallelConfig::recompute, recompute),
                               fmt::format("parallel.tp_mode={}", tp > 1 ? "reduce_scatter" : "all_reduce"),
                               "parallel.recompute_layers=all",
                               "parallel.zero_size=0",
                               "parallel.pp_layers=''"};
  for (const std::string& key : ExpertRanks{ep, ep_over_tp}.overrides()) all.push_back(key);
  if (states == deck::StateMemory::host) all.push_back("optimizer.state_memory=host");
  if (messages_by_node)
    all.push_back(override_with("ep_messages", &deck::ParallelConfig::ep_messages, deck::ExpertMessages::by_node));
  all.push_back(override_with("pp_schedule", &deck::ParallelConfig::pp_schedule, schedule));
  if (schedule == deck::PpSchedule::interleaved_1f1b)
    all.push_back(fmt::format("parallel.pp_chunks={}", virtual_stages));
  return all;
}

std::vector<std::string> on_one_rank(std::vector<std::string> overrides) {
  const deck::Config none;
  for (const deck::Parameter& row : deck::parameters()) {
    if (row.group == "parallel")
      overrides.push_back(fmt::format("parallel.{}={}", row.name, deck::spelled(row.get(none))));
  }
  overrides.insert(overrides.end(), {"parallel.dp=1", "moe.receive_factor=0", "moe.receive_quantile=0"});
  return overrides;
}

double GridOptions::in_flight(std::int64_t micro_batches) const {
  const auto p = static_cast<double>(pp), v = static_cast<double>(virtual_stages);
  const double wanted = schedule == deck::PpSchedule::interleaved_1f1b ? p * (1.0 + (p - 1.0) / (p * v)) : p;
  return std::min(wanted, static_cast<double>(micro_batches));
}

std::vector<GridOptions> grid_options(const deck::Config& base, int ranks, const deck::Machine& machine) {
  std::vector<GridOptions> all;
  const std::vector<deck::StateMemory> memories = memories_of(base, machine);
  for_each_grid(base, ranks, machine, [&](GridOptions o) {
    const std::int64_t of_replica = base.data.global_batch_size / o.dp;
    for (const std::int64_t micro_batch : divisors(of_replica, largest_micro_batch)) {
      o.micro_batch = micro_batch;
      for_each_schedule(base, o, of_replica / micro_batch, [&](const GridOptions& scheduled) {
        for_each_memory_saving(scheduled, memories, [&](const GridOptions& option) { all.push_back(option); });
      });
    }
  });
  return all;
}

namespace {

// Bytes for each element of the states of the optimizer that are shaped as the parameters.
template <class M>
double state_bytes(const deck::Config& base, const model::ParameterTable& table) {
  const nn::ParameterLayouts layouts = model::parameter_layouts(table, {}, model::ComputeWeights::master);
  Arena planning = Arena::planning();
  const auto optimizer = optim::make_optimizer<M>(base, {.table = table, .layouts = layouts, .sharding = {}}, planning);
  double bytes = 0.0;
  for (const optim::Moment<M>& moment : optimizer->moments()) {
    const auto elements = static_cast<double>(moment.layout.size());
    std::visit([&]<class U>(const Vector<U>&) { bytes += elements * sizeof(U); }, moment.values);
  }
  return bytes / static_cast<double>(layouts.moments.size());
}

}  // namespace

LeastMemory::LeastMemory(const deck::Config& base) : base_(base) {
  const model::ParameterTable table = model::make_parameter_table(base);
  for (const nn::ParameterSpec& spec : table.specs) {
    Elements& all = spec.has_gradient ? trained_ : others_;
    (spec.stack.empty() ? all.dense : all.routed) += static_cast<double>(spec.logical_size());
  }
  with_scalar_type(base.precision.compute, [&]<class T>(std::type_identity<T>) {
    using M = master_t<T>;
    weight_ = sizeof(T);
    master_ = sizeof(M);
    states_ = state_bytes<M>(base, table);
    wider_ = std::is_same_v<T, M> ? 0.0 : sizeof(M);
  });
}

double LeastMemory::of_states(const GridOptions& o) const {
  return trained_.on_rank(o) * states_ / (o.zero_stage >= 1 ? static_cast<double>(o.dp * o.cp) : 1.0);
}

// Weights, gradients, master weights in a wider type and moments, sharded as the ZeRO stage says; the hidden states
// between layers.
double LeastMemory::of(const GridOptions& o) const {
  const auto shards = static_cast<double>(o.dp * o.cp);
  const double weights = weight_ / (o.zero_stage == 3 ? shards : 1.0);
  const double parameters = trained_.on_rank(o) * (weights + master_ / (o.zero_stage >= 2 ? shards : 1.0) +
                                                   wider_ / (o.zero_stage >= 1 ? shards : 1.0)) +
                            (o.states == deck::StateMemory::device ? of_states(o) : 0.0) + others_.on_rank(o) * weights;
  const double tokens =
      static_cast<double>(o.micro_batch * base_.data.sequence_length) / static_cast<double>(o.cp * o.tp);
  const double layers = static_cast<double>(base_.model.num_hidden_layers) / static_cast<double>(o.pp);
  const double of_layer = o.recompute == deck::Recompute::full ? 1.0 : 5.0;
  const std::int64_t micro_batches = base_.data.global_batch_size / o.dp / o.micro_batch;
  return 0.9 * parameters + tokens * static_cast<double>(base_.model.hidden_size) * weight_ * layers * of_layer *
                                o.in_flight(micro_batches);
}

}  // namespace nanotron::simulation
