#include "nanotron/parallel/pipeline/pipeline_partition.hpp"

#include <algorithm>
#include <charconv>
#include <limits>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/config.hpp"

namespace nanotron::parallel {

std::optional<std::vector<std::int64_t>> layer_counts(std::string_view text) {
  std::vector<std::int64_t> counts;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto skip_blanks = [&] {
    while (at != end && *at == ' ') ++at;
  };
  for (skip_blanks(); at != end;) {
    std::int64_t count = 0;
    const auto [behind, error] = std::from_chars(at, end, count);
    if (error != std::errc() || count < 1) return std::nullopt;
    counts.push_back(count);
    at = behind;
    skip_blanks();
    if (at == end) break;
    if (*at == ',') {
      ++at;
      skip_blanks();
      if (at == end) return std::nullopt;
    } else if (at == behind) {
      return std::nullopt;
    }
  }
  if (counts.empty()) return std::nullopt;
  return counts;
}

// best[s][i]: min over partitions of layers [0, i) into s stages of the max stage cost. The last stage begins at j:
//
//   best[s][i] = min over j of max(best[s - 1][j], cost(j, i))
//
// best[s - 1][j] grows with j and cost(j, i) falls, so bisection finds the j where they cross.
std::vector<Range> cut_layers(const model::BlockCosts& costs, index_t layers, int stages) {
  NANOTRON_REQUIRE(stages >= 1 && stages <= layers, "{} stages of {} layers", stages, layers);
  const auto cost = [&](index_t begin, index_t end) {
    return costs.layers.sum(begin, end) + (begin == 0 ? costs.embedding : 0.0) + (end == layers ? costs.head : 0.0);
  };
  const auto n = static_cast<std::size_t>(layers);
  const auto k = static_cast<std::size_t>(stages);
  std::vector<std::vector<double>> best(k + 1, std::vector<double>(n + 1, std::numeric_limits<double>::infinity()));
  std::vector<std::vector<index_t>> begin(k + 1, std::vector<index_t>(n + 1, 0));
  for (std::size_t i = 1; i <= n; ++i) best[1][i] = cost(0, static_cast<index_t>(i));
  for (std::size_t s = 2; s <= k; ++s) {
    for (std::size_t i = s; i <= n; ++i) {
      const auto end = static_cast<index_t>(i);
      const auto candidate = [&](index_t j) {
        return std::max(best[s - 1][static_cast<std::size_t>(j)], cost(j, end));
      };
      auto low = static_cast<index_t>(s) - 1, high = end - 1;  // first j with best[s-1][j] >= cost(j, end)
      while (low < high) {
        const index_t middle = (low + high) / 2;
        if (best[s - 1][static_cast<std::size_t>(middle)] >= cost(middle, end)) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      const bool before = low > static_cast<index_t>(s) - 1 && candidate(low - 1) <= candidate(low);
      begin[s][i] = before ? low - 1 : low;
      best[s][i] = candidate(begin[s][i]);
    }
  }
  std::vector<Range> cut(k);
  index_t end = layers;
  for (std::size_t s = k; s >= 1; --s) {
    cut[s - 1] = {s == 1 ? 0 : begin[s][static_cast<std::size_t>(end)], end};
    end = cut[s - 1].begin;
  }
  return cut;
}

std::vector<Range> stage_layers(const deck::Config& config) {
  const auto stages = static_cast<int>(deck::pipeline_stages(config.parallel));
  const index_t layers = config.model.num_hidden_layers;
  if (config.parallel.pp_layers.empty()) {
    return cut_layers(config.parallel.pp_cut == deck::PpCut::parameters ? model::block_parameters(config.model)
                                                                        : model::block_flops(config),
                      layers, stages);
  }
  std::vector<Range> cut;
  index_t begin = 0;
  const std::vector<std::int64_t> counts = *layer_counts(config.parallel.pp_layers);
  for (const std::int64_t count : counts) {
    cut.push_back({begin, begin + count});
    begin += count;
  }
  return cut;
}

std::vector<model::VirtualStage> virtual_stages_of_rank(const std::vector<Range>& stage_layers,
                                                        const PipelineSchedule& schedule, int rank) {
  const Slots slots = assign_slots(schedule.actions[static_cast<std::size_t>(rank)], schedule.virtual_stages);
  std::vector<model::VirtualStage> virtual_stages;
  for (index_t c = 0; c < schedule.virtual_stages; ++c) {
    virtual_stages.push_back({.layers = stage_layers[static_cast<std::size_t>(schedule.stage_of(rank, c))],
                              .slots = slots.of_stage[static_cast<std::size_t>(c)]});
  }
  return virtual_stages;
}

PipelineSchedule schedule_of(const deck::Config& config) { return schedule_of(config, config.data.global_batch_size); }

PipelineSchedule schedule_of(const deck::Config& config, index_t batch_size) {
  const deck::ParallelConfig& p = config.parallel;
  const deck::PpSchedule kind = p.pp == 1 ? deck::PpSchedule::one_f_one_b : p.pp_schedule;
  return make_schedule(kind, static_cast<int>(p.pp), static_cast<int>(deck::virtual_stages(p)),
                       batch_size / p.dp / config.data.micro_batch_size);
}

}  // namespace nanotron::parallel
