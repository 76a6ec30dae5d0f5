#include "nanotron/comm/watch/watched_groups.hpp"

#include <algorithm>
#include <array>

namespace nanotron::comm {

// A group's number: its kind and its lowest rank of the world. Groups of a kind have no rank in common.
void WatchedGroups::watch_by(PayloadWatch* watch) {
  grid_.for_each_group([&](Group& group, GroupKind kind) {
    const std::vector<int> ranks = ranks_of_group(grid_.shape(), grid_.coordinate(), kind);
    const auto lowest = static_cast<std::uint64_t>(*std::ranges::min_element(ranks));
    group.account().watched = {watch, static_cast<std::uint64_t>(kind) << 24 | lowest};
  });
}

namespace {

#define NANOTRON_AXIS(axis)                                                                                  \
  AxisOperations {                                                                                           \
    axis, {                                                                                                  \
      axis " all_reduce", axis " all_gather", axis " reduce_scatter", axis " broadcast", axis " all_to_all", \
          axis " messages", axis " host values", axis " wait and progress"                                   \
    }                                                                                                        \
  }
enum { tp, cp, pp, ep, dp, all };
constexpr std::array axes{NANOTRON_AXIS("tp"), NANOTRON_AXIS("cp"), NANOTRON_AXIS("pp"),
                          NANOTRON_AXIS("ep"), NANOTRON_AXIS("dp"), NANOTRON_AXIS("world")};
#undef NANOTRON_AXIS

int axis_of(GroupKind kind) {
  switch (kind) {
    case GroupKind::tp:
      return tp;
    case GroupKind::cp:
    case GroupKind::cp_all_to_all:
    case GroupKind::cp_ring:
      return cp;
    case GroupKind::pp:
    case GroupKind::embedding:
      return pp;
    case GroupKind::ep:
    case GroupKind::ep_across:
    case GroupKind::ep_within:
      return ep;
    case GroupKind::world:
      return all;
    default:
      return dp;  // of the data-parallel groups
  }
}

}  // namespace

std::span<const AxisOperations> axis_operations() { return axes; }

void TimedGroups::time_with(Timers* timers) {
  const auto time = [&](Group& group, int axis) {
    group.time_with(timers, axes[static_cast<std::size_t>(axis)].names);
  };
  time(grid_.world(), all);
  grid_.for_each_group([&](Group& group, GroupKind kind) { time(group, axis_of(kind)); });
}

}  // namespace nanotron::comm
