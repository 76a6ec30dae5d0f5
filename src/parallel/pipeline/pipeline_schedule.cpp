#include "nanotron/parallel/pipeline/pipeline_schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "nanotron/base/error.hpp"
#include "nanotron/tensor/shard.hpp"
#include "parallel/pipeline/zero_bubble.hpp"

namespace nanotron::parallel {
namespace {

constexpr auto whole_backward = Work::backward;

std::vector<Action> gpipe(index_t micro_batches) {
  std::vector<Action> actions;
  for (const Work work : {Work::forward, whole_backward}) {
    for (index_t m = 0; m < micro_batches; ++m) actions.push_back({work, 0, m});
  }
  return actions;
}

// `warm_up` forwards, then one forward and one backward in turn, then the remaining backwards; each in list order.
std::vector<Action> one_forward_one_backward(const std::vector<Action>& forwards, const std::vector<Action>& backwards,
                                             index_t warm_up) {
  const auto count = static_cast<index_t>(forwards.size());
  warm_up = std::min(warm_up, count);
  std::vector<Action> actions(forwards.begin(), forwards.begin() + warm_up);
  for (index_t k = 0; k < count; ++k) {
    if (warm_up + k < count) actions.push_back(forwards[static_cast<std::size_t>(warm_up + k)]);
    actions.push_back(backwards[static_cast<std::size_t>(k)]);
  }
  return actions;
}

// Micro-batches pass through the virtual stages in groups; this is their number. With p = ranks a group has p to 2p - 1
// micro-batches, or all of them if they are fewer than p. (Smaller groups would make a rank wait for a micro-batch that
// waits for this rank.)
int groups_of(int ranks, index_t micro_batches) {
  return static_cast<int>(std::max<index_t>(1, micro_batches / ranks));
}

// Per group: all virtual stages, each with all micro-batches of the group; backward takes the stages in reverse.
std::vector<Action> in_groups(Work work, int ranks, int virtual_stages, index_t micro_batches) {
  std::vector<Action> actions;
  const int groups = groups_of(ranks, micro_batches);
  for (int g = 0; g < groups; ++g) {
    const Range group = shard_range(micro_batches, groups, g);
    for (index_t c = 0; c < virtual_stages; ++c) {
      const index_t virtual_stage = work == Work::forward ? c : virtual_stages - 1 - c;
      for (index_t m = group.begin; m < group.end; ++m) actions.push_back({work, virtual_stage, m});
    }
  }
  return actions;
}

std::vector<Action> interleaved(int ranks, int virtual_stages, int rank, index_t micro_batches) {
  const index_t largest_group = shard_range(micro_batches, groups_of(ranks, micro_batches), 0).size();
  return one_forward_one_backward(in_groups(Work::forward, ranks, virtual_stages, micro_batches),
                                  in_groups(whole_backward, ranks, virtual_stages, micro_batches),
                                  2 * (ranks - rank - 1) + (virtual_stages - 1) * largest_group);
}

index_t duration(Work work) { return work == Work::backward ? 2 : 1; }

}  // namespace

StageLocation PipelineSchedule::location_of(int stage) const {
  if (placement == Placement::loop) return {stage % ranks, stage / ranks};
  return stage < ranks ? StageLocation{stage, 0} : StageLocation{2 * ranks - 1 - stage, 1};
}

int PipelineSchedule::stage_of(int rank, index_t virtual_stage) const {
  if (placement == Placement::loop) return static_cast<int>(virtual_stage) * ranks + rank;
  return virtual_stage == 0 ? rank : 2 * ranks - 1 - rank;
}

bool splits_backward(const deck::ParallelConfig& config) {
  return config.pp > 1 && config.pp_schedule == deck::PpSchedule::zero_bubble;
}

PipelineSchedule make_schedule(deck::PpSchedule kind, int ranks, int virtual_stages, index_t micro_batches) {
  PipelineSchedule schedule{.ranks = ranks,
                            .virtual_stages = virtual_stages,
                            .placement = kind == deck::PpSchedule::zero_bubble ? Placement::vee : Placement::loop,
                            .micro_batches = micro_batches,
                            .actions = {}};
  if (kind == deck::PpSchedule::zero_bubble) {
    schedule.actions = zero_bubble_actions(schedule);
    return schedule;
  }
  for (int rank = 0; rank < ranks; ++rank) {
    schedule.actions.push_back(kind == deck::PpSchedule::gpipe ? gpipe(micro_batches)
                               : kind == deck::PpSchedule::one_f_one_b
                                   ? one_forward_one_backward(in_groups(Work::forward, ranks, 1, micro_batches),
                                                              in_groups(whole_backward, ranks, 1, micro_batches),
                                                              ranks - rank - 1)
                                   : interleaved(ranks, schedule.virtual_stages, rank, micro_batches));
  }
  return schedule;
}

Slots assign_slots(const std::vector<Action>& actions, int virtual_stages) {
  Slots slots{{}, std::vector<index_t>(static_cast<std::size_t>(virtual_stages), 0)};
  std::vector<std::vector<index_t>> free(static_cast<std::size_t>(virtual_stages));
  std::map<std::pair<index_t, index_t>, index_t> taken;  // by virtual stage and micro-batch
  for (const Action& a : actions) {
    const auto virtual_stage = static_cast<std::size_t>(a.virtual_stage);
    if (a.work == Work::forward) {
      if (free[virtual_stage].empty()) free[virtual_stage].push_back(slots.of_stage[virtual_stage]++);
      taken[{a.virtual_stage, a.micro_batch}] = free[virtual_stage].back();
      free[virtual_stage].pop_back();
    }
    const index_t slot = taken.at({a.virtual_stage, a.micro_batch});
    slots.of_action.push_back(slot);
    if (a.work == Work::backward || a.work == Work::backward_weight) free[virtual_stage].push_back(slot);
  }
  return slots;
}

Timeline simulate(const PipelineSchedule& schedule) {
  const auto ranks = static_cast<std::size_t>(schedule.ranks);
  const int last = schedule.stages() - 1;
  // When the output of a stage, or the gradient of its input, is ready; by stage and micro-batch, -1: not yet.
  const std::vector<std::vector<index_t>> never(
      static_cast<std::size_t>(last + 1), std::vector<index_t>(static_cast<std::size_t>(schedule.micro_batches), -1));
  auto output = never, gradient = never;
  std::vector<index_t> clock(ranks, 0), work(ranks, 0);
  Timeline timeline{.begin = std::vector<std::vector<index_t>>(ranks)};
  const auto runs = [&](std::size_t rank) {  // runs the rank's next action if its inputs are ready
    const auto at = timeline.begin[rank].size();
    if (at == schedule.actions[rank].size()) return false;
    const Action& a = schedule.actions[rank][at];
    const int stage = schedule.stage_of(static_cast<int>(rank), a.virtual_stage);
    const auto m = static_cast<std::size_t>(a.micro_batch);
    const auto s = static_cast<std::size_t>(stage);
    index_t ready = 0;
    if (a.work == Work::forward) {
      ready = stage == 0 ? 0 : output[s - 1][m];
    } else if (a.work == Work::backward_weight) {
      ready = gradient[s][m];
    } else {
      ready = stage == last ? output[s][m] : std::min(output[s][m], gradient[s + 1][m]) < 0 ? -1 : gradient[s + 1][m];
    }
    if (ready < 0) return false;
    const index_t begin = std::max(clock[rank], ready), end = begin + duration(a.work);
    timeline.begin[rank].push_back(begin);
    clock[rank] = end;
    work[rank] += duration(a.work);
    if (a.work == Work::forward) output[s][m] = end;
    if (a.work == Work::backward || a.work == Work::backward_input) gradient[s][m] = end;
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      while (runs(rank)) moved = true;
    }
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    NANOTRON_REQUIRE(timeline.begin[rank].size() == schedule.actions[rank].size(),
                     "rank {} of the pipeline waits forever after {} actions", rank, timeline.begin[rank].size());
  }
  timeline.length = *std::max_element(clock.begin(), clock.end());
  timeline.work = *std::max_element(work.begin(), work.end());
  return timeline;
}

std::string chart(const PipelineSchedule& schedule, index_t max_columns) {
  const Timeline timeline = simulate(schedule);
  const index_t columns = std::min(timeline.length, max_columns);
  const std::size_t width =
      fmt::format("{}", schedule.micro_batches - 1).size() + (schedule.virtual_stages > 1 ? 3 : 2);
  std::string text;
  for (std::size_t rank = 0; rank < schedule.actions.size(); ++rank) {
    std::string line(static_cast<std::size_t>(columns) * width, ' ');
    for (std::size_t i = 0; i < schedule.actions[rank].size(); ++i) {
      const Action& a = schedule.actions[rank][i];
      if (timeline.begin[rank][i] >= columns) break;
      const char letter = "FBIW"[static_cast<int>(a.work)];
      std::string cell = fmt::format("{}{}", letter, a.micro_batch);
      if (schedule.virtual_stages > 1) cell += static_cast<char>('a' + a.virtual_stage % 26);
      if (a.work == Work::backward) cell += std::string(2 * width - cell.size() - 1, '-');
      const auto at = static_cast<std::size_t>(timeline.begin[rank][i]) * width;
      line.replace(at, std::min(cell.size(), line.size() - at), cell.substr(0, line.size() - at));
    }
    text += fmt::format("  {:>3} |{}{}\n", rank, line, columns < timeline.length ? " ..." : "|");
  }
  return text;
}

}  // namespace nanotron::parallel
