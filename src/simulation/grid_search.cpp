#include "nanotron/simulation/grid_search.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "nanotron/base/error.hpp"
#include "nanotron/base/timer.hpp"
#include "nanotron/comm/message_nodes.hpp"
#include "nanotron/deck/layer_recompute.hpp"
#include "nanotron/model/cost.hpp"
#include "nanotron/parallel/pipeline/pipeline_partition.hpp"
#include "nanotron/parallel/pipeline/pipeline_schedule.hpp"
#include "nanotron/simulation/operation_time.hpp"
#include "nanotron/simulation/step_prediction.hpp"
#include "nanotron/trainer/plan/plan.hpp"
#include "nanotron/trainer/start/deck_features.hpp"
#include "simulation/expert_options.hpp"
#include "simulation/grid_options.hpp"
#include "simulation/tables.hpp"

namespace nanotron::simulation {
namespace {

// A layer of the kind that most layers have.
std::int64_t typical_layer(const deck::ModelConfig& model) {
  const deck::LayerKinds kinds(model);
  const std::vector<std::int64_t> first = kinds.first_layers();
  const auto count = [&](std::int64_t layer) { return kinds.count(kinds.of(layer), 0, model.num_hidden_layers); };
  return *std::ranges::max_element(first, {}, count);
}

struct Ranked {
  GridOptions options;
  double seconds = 0.0;
};

class Search {
 public:
  Search(const std::string& text, const std::string& name, const std::vector<std::string>& overrides, int ranks,
         const deck::Machine& machine)
      : text_(text), name_(name), overrides_(overrides), ranks_(ranks), machine_(machine) {
    base_ = trainer::read_deck_text(text, name, on_one_rank(overrides));
    trainer::resolve(base_, 1);
    smallest_.emplace(base_);
    if (base_.model.vocab_size == 0) {
      fail(ExitCode::deck_error, {.what = "vocabulary size unknown",
                                  .expected = "model%vocab_size in the deck",
                                  .where = name,
                                  .change = "--set model.vocab_size=32000"});
    }
  }

  const deck::Config& base() const { return base_; }
  const LeastMemory& smallest_memory() const { return *smallest_; }

  /// Nothing for what the checks refuse.
  std::optional<deck::Config> config_of(const GridOptions& o, int ranks) const {
    std::vector<std::string> all = overrides_;
    std::ranges::copy(o.overrides(), std::back_inserter(all));
    try {
      deck::Config config = trainer::read_deck_text(text_, name_, all, nullptr, ranks);
      trainer::resolve(config, ranks);
      return comm::with_message_nodes(std::move(config), machine_);
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  /// By the formula of the header; candidates without layers that can be simulated are left out.
  std::optional<double> ranked_seconds(const GridOptions& o) {
    const std::optional<Layers> layers = layers_of(o);
    if (!layers) return std::nullopt;
    const auto m = static_cast<double>(base_.data.global_batch_size / o.dp / o.micro_batch);
    const auto p = static_cast<double>(o.pp), v = static_cast<double>(o.virtual_stages);
    const double stage = static_cast<double>(base_.model.num_hidden_layers) / p * layers->layer;
    const double bubble = o.schedule == deck::PpSchedule::zero_bubble ? zero_bubble(o) : (p - 1.0) / v;
    const double pipeline = (m + bubble) * (stage + layers->rest / p);
    const double states = o.states == deck::StateMemory::host ? smallest_->of_states(o) / machine_.node.host_link : 0.0;
    const double update = std::max(0.0, states - stage / 3.0);              // it goes beside the first forward
    return pipeline + reduction(o, m) + update + 0.02 * (v - 1.0) * stage;  // messages grow with virtual stages
  }

  /// Bytes of the plan of these options, whose config this is; beyond the limit any number that is. Planned once.
  double memory_of(const GridOptions& o, const deck::Config& config) {
    const auto [found, is_new] = memory_.try_emplace(fmt::format("{}", fmt::join(o.overrides(), " ")), 0.0);
    if (is_new) found->second = memory_bytes(config, machine_, machine_.buffer_limit());
    return found->second;
  }

 private:
  struct Layers {
    double layer = 0.0, rest = 0.0;  // seconds of a micro-batch
  };

  // One and two layers on the ranks of tp, cp and ep.
  std::optional<Layers> layers_of(const GridOptions& o) {
    const auto key = std::make_tuple(o.tp, o.cp, o.ep, o.ep_over_tp, o.micro_batch, o.recompute);
    const auto found = layers_.find(key);
    if (found != layers_.end()) return found->second;
    GridOptions small{.dp = ExpertRanks{o.ep, o.ep_over_tp}.smallest_dp(o.cp, o.tp),
                      .tp = o.tp,
                      .cp = o.cp,
                      .ep = o.ep,
                      .micro_batch = o.micro_batch,
                      .recompute = o.recompute,
                      .ep_over_tp = o.ep_over_tp};
    const int ranks = static_cast<int>(small.dp * small.tp * small.cp);
    std::optional<deck::Config> config = config_of(small, ranks);
    std::optional<Layers> layers;
    if (config) {
      config->data.global_batch_size = small.dp * o.micro_batch;
      const deck::ModelConfig model = config->model;
      const std::int64_t layer = typical_layer(model);
      config->model = deck::only_layers(model, {layer});
      const double one = predict_step(*config, machine_).seconds;
      config->model = deck::only_layers(model, {layer, layer});
      const double two = predict_step(*config, machine_).seconds;
      layers = Layers{two - one, std::max(0.0, 2.0 * one - two)};
    }
    layers_[key] = layers;
    return layers;
  }

  // Bubble of the schedule's own lists, in times of a micro-batch on a stage: six units of theirs. It does not grow
  // with more than a few micro-batches for each rank.
  double zero_bubble(const GridOptions& o) {
    const std::int64_t micro_batches = std::min(base_.data.global_batch_size / o.dp / o.micro_batch, 4 * o.pp);
    const auto [found, is_new] = bubbles_.try_emplace({o.pp, micro_batches}, 0.0);
    if (is_new) {
      const parallel::Timeline timeline = parallel::simulate(parallel::make_schedule(
          deck::PpSchedule::zero_bubble, static_cast<int>(o.pp), static_cast<int>(o.virtual_stages), micro_batches));
      found->second = static_cast<double>(timeline.length - timeline.work) / 6.0;
    }
    return found->second;
  }

  // Gradients once a step, half of it overlapped with backward; with ZeRO-3 weights twice for each micro-batch, ZeRO-2
  // gradients.
  double reduction(const GridOptions& o, double micro_batches) const {
    if (o.dp * o.cp == 1) return 0.0;
    const double parameters = model::block_parameters(base_.model).layers.sum(0, base_.model.num_hidden_layers) +
                              2.0 * model::block_parameters(base_.model).embedding;
    const double bytes = 4.0 * parameters / static_cast<double>(o.tp * o.pp);
    const std::int64_t in_node = machine_.node.ranks == 0 ? ranks_ : machine_.node.ranks;
    const std::int64_t apart = o.tp;  // order tp-cp-pp-dp
    const auto per_node =
        std::max<std::int64_t>(1, std::min(o.dp * o.cp, in_node / std::max<std::int64_t>(1, apart * o.pp)));
    const GroupPlacement group{static_cast<int>(o.dp * o.cp),
                               static_cast<int>((o.dp * o.cp + per_node - 1) / per_node)};
    const double once = collective_seconds(comm::Operation::reduce_scatter, bytes, group, machine_);
    const double times = o.zero_stage == 3 ? 2.0 * micro_batches : o.zero_stage == 2 ? micro_batches + 0.5 : 1.5;
    return 0.5 * times * once;
  }

  std::string text_, name_;
  std::vector<std::string> overrides_;
  int ranks_;
  const deck::Machine& machine_;
  deck::Config base_;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, bool, std::int64_t, deck::Recompute>,
           std::optional<Layers>>
      layers_;
  std::optional<LeastMemory> smallest_;                              // of base_
  std::map<std::pair<std::int64_t, std::int64_t>, double> bubbles_;  // by pp and micro-batches
  std::map<std::string, double> memory_;                             // by overrides
};

std::vector<Ranked> ranked(Search& search, const std::vector<GridOptions>& all, const deck::Machine& machine) {
  const double limit = machine.buffer_limit();
  std::vector<Ranked> list;
  for (const GridOptions& o : all) {
    if (search.smallest_memory().of(o) > limit) continue;
    if (const std::optional<double> seconds = search.ranked_seconds(o)) list.push_back({o, *seconds});
  }
  std::ranges::stable_sort(list, {}, &Ranked::seconds);
  return list;
}

// The first n layers of each stage, or 'all'.
std::string first_layers(const std::vector<Range>& stages, std::int64_t n) {
  std::string text;
  bool is_all = true;
  for (const Range& stage : stages) {
    const std::int64_t end = std::min(stage.end, stage.begin + n);
    text += fmt::format("{}{}-{}", text.empty() ? "" : " ", stage.begin, end - 1);
    is_all = is_all && end == stage.end;
  }
  return is_all ? "all" : text;
}

// The plan is within `limit` without the recomputation, or without the host's memory, that this grid has: another
// candidate, which is faster.
bool saves_in_vain(Search& search, const GridOptions& options, const deck::Config& config, double limit) {
  const auto fits = [&](deck::Recompute recompute, deck::StateMemory states) {
    GridOptions other = options;
    deck::Config of_other = config;
    other.recompute = of_other.parallel.recompute = recompute;
    other.states = of_other.optimizer.state_memory = states;
    return search.memory_of(other, of_other) <= limit;
  };
  return (options.recompute != deck::Recompute::none && fits(deck::Recompute::none, options.states)) ||
         (options.states != deck::StateMemory::device && fits(options.recompute, deck::StateMemory::device));
}

// parallel%recompute_layers <- the fewest layers of each stage with which the plan is within `limit`, as with all.
void recompute_fewest_layers(deck::Config& config, const deck::Machine& machine, double limit) {
  if (config.parallel.recompute == deck::Recompute::none) return;
  const std::vector<Range> stages = parallel::stage_layers(config);
  std::int64_t too_few = 0, enough = std::ranges::max(stages, {}, &Range::size).size();
  while (enough - too_few > 1) {
    const std::int64_t n = (too_few + enough) / 2;
    config.parallel.recompute_layers = first_layers(stages, n);
    (memory_bytes(config, machine, limit) <= limit ? enough : too_few) = n;
  }
  config.parallel.recompute_layers = first_layers(stages, enough);
}

// Replaces a candidate with experts by the same with messages by node, if that fits and is faster.
void choose_messages(const Search& search, GridOptions options, int ranks, const deck::Machine& machine,
                     GridCandidate& candidate) {
  if (options.ep == 1 || candidate.config.parallel.ep_messages == deck::ExpertMessages::by_node) return;
  options.messages_by_node = true;
  std::optional<deck::Config> config = search.config_of(options, ranks);
  if (!config) return;
  config->parallel.recompute_layers = candidate.config.parallel.recompute_layers;
  const double limit = machine.buffer_limit() - trainer::nccl_memory_of(*config, {}, machine).bytes;
  const double memory = memory_bytes(*config, machine, limit);
  if (memory > limit) return;
  const StepPrediction prediction = estimate_step(*config, machine);
  if (prediction.seconds >= candidate.prediction.seconds) return;
  candidate.overrides.emplace_back("parallel.ep_messages=by_node");
  candidate = {std::move(candidate.overrides), std::move(*config), memory, prediction};
}

}  // namespace

SearchResult search_grids(const std::string& text, const std::string& name, const std::vector<std::string>& overrides,
                          int ranks, const deck::Machine& machine, const SearchLimits& limits) {
  const double begin = wall_seconds();
  Search search(text, name, overrides, ranks, machine);
  const std::vector<GridOptions> all = grid_options(search.base(), ranks, machine);
  SearchResult result{.best = {}, .candidates = static_cast<int>(all.size())};
  const double limit = machine.buffer_limit();
  for (const Ranked& candidate : ranked(search, all, machine)) {
    const bool is_late = wall_seconds() - begin > limits.seconds && !result.best.empty();
    if (result.examined >= limits.examined || is_late) break;
    std::optional<deck::Config> config = search.config_of(candidate.options, ranks);
    if (!config) continue;
    ++result.legal;
    double memory = search.memory_of(candidate.options, *config);
    if (memory > limit) continue;
    const double nccl = trainer::nccl_memory_of(*config, {}, machine).bytes;
    if (memory + nccl > limit || saves_in_vain(search, candidate.options, *config, limit - nccl)) continue;
    ++result.examined;
    std::vector<std::string> overrides = candidate.options.overrides();
    recompute_fewest_layers(*config, machine, limit - nccl);
    if (config->parallel.recompute_layers != "all") {
      memory = memory_bytes(*config, machine, limit);
      overrides.push_back(fmt::format("parallel.recompute_layers='{}'", config->parallel.recompute_layers));
    }
    const StepPrediction prediction = estimate_step(*config, machine);
    result.best.push_back({std::move(overrides), std::move(*config), memory, prediction});
    choose_messages(search, candidate.options, ranks, machine, result.best.back());
  }
  if (result.best.empty()) {
    fail(ExitCode::deck_error,
         {.what = fmt::format("no grid of {} ranks trains this deck on {}", ranks, machine.name),
          .expected = "a grid whose memory fits",
          .found = fmt::format("{} combinations, none within {:.1f} GB per rank besides the {:.1f} of reserved_gb",
                               all.size(), limit / 1e9, machine.node.reserved_bytes / 1e9),
          .where = name,
          .change = "more ranks, a longer tp within the node, or another global_batch_size (it is a multiple of dp)"});
  }
  const auto faster = [](const GridCandidate& a, const GridCandidate& b) {
    return a.prediction.seconds < b.prediction.seconds;
  };
  std::ranges::stable_sort(result.best, faster);
  if (result.best.size() > static_cast<std::size_t>(limits.best)) {
    result.best.erase(result.best.begin() + limits.best, result.best.end());
  }
  for (GridCandidate& c : result.best) c.prediction = predict_step(c.config, machine);
  std::ranges::stable_sort(result.best, faster);
  return result;
}

std::string recompute_text(const deck::Config& config) {
  const deck::ParallelConfig& p = config.parallel;
  const std::int64_t layers = config.model.num_hidden_layers;
  const std::string how = deck::recompute_text({.recompute = p.recompute}, layers);
  if (p.recompute_layers == "all") return how;
  return fmt::format("{} {}/{}", how, deck::LayerSet(p.recompute_layers).count(layers), layers);
}

std::string virtual_text(const deck::ParallelConfig& p) {
  const bool is_vee = p.pp > 1 && p.pp_schedule == deck::PpSchedule::zero_bubble;
  return fmt::format("{}{}", deck::virtual_stages(p), is_vee ? " V" : "");
}

namespace {

// --set parallel.dp=2 --set "parallel.pp_layers=''" ..., in lines for a shell.
std::string as_arguments(const std::vector<std::string>& overrides) {
  std::string text, line = " ";
  for (const std::string& key : overrides) {
    const char* const quote = key.find('\'') == std::string::npos ? "" : "\"";
    const std::string next = fmt::format(" --set {}{}{}", quote, key, quote);
    if (line.size() + next.size() > 110) {
      text += line + " \\\n";
      line = " ";
    }
    line += next;
  }
  return text + line + "\n";
}

}  // namespace

std::string describe(const SearchResult& result, const deck::Machine& machine) {
  std::string text = fmt::format("{} combinations, {} planned, {} simulated on {}\n", result.candidates, result.legal,
                                 result.examined, machine.name);
  text += fmt::format("{:>3}{:>6}{:>4}{:>4}{:>4}{:>4}{:>13}{:>6}{:>18}{:>9}{:>9}{:>11}{:>13}{:>7}{:>12}{:>9}  {}\n", "",
                      "dp", "tp", "pp", "cp", "ep", "micro-batch", "ZeRO", "recompute", "virtual", "GB", "s per step",
                      "tokens/s", "MFU %", "node-hours", "MWh", "waits");
  int number = 0;
  for (const GridCandidate& c : result.best) {
    const deck::ParallelConfig& p = c.config.parallel;
    const double peak = machine.peak(c.config.precision.compute);
    const double hours = static_cast<double>(c.config.run.steps) * c.prediction.seconds / 3600.0;
    text += fmt::format(
        "{:>3}{:>6}{:>4}{:>4}{:>4}{:>4}{:>13}{:>6}{:>18}{:>9}{:>9.1f}{:>11.3f}{:>13.0f}{:>7.1f}{:>12.0f}{:>9}  {}\n",
        ++number, p.dp, p.tp, p.pp, p.cp, ep_text(p), c.config.data.micro_batch_size, p.zero_stage,
        recompute_text(c.config), virtual_text(p), c.memory / 1e9, c.prediction.seconds,
        c.prediction.tokens_per_second(), 100.0 * c.prediction.model_flops / c.prediction.seconds / peak,
        hours * c.prediction.nodes,
        c.prediction.watts > 0.0 ? fmt::format("{:.1f}", hours * c.prediction.watts / 1e6) : "-",
        waits_text(c.prediction));
  }
  if (!result.best.empty()) text += "the keys of the first:\n" + as_arguments(result.best.front().overrides);
  return text;
}

}  // namespace nanotron::simulation
