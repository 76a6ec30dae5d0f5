#include "nanotron/comm/watch/timed_groups.hpp"

#include <array>

namespace nanotron::comm {
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

}  // namespace

std::span<const AxisOperations> axis_operations() { return axes; }

void TimedGroups::time_with(Timers* timers) {
  const auto time = [&](Group& group, int axis) {
    group.time_with(timers, axes[static_cast<std::size_t>(axis)].names);
  };
  for (const ReplicaSet set : {ReplicaSet::data_parallel, ReplicaSet::expert_data_parallel}) {
    DataGroups& groups = grid_.data_groups(set);
    for (Group* const group : {&groups.data, &groups.shard, &groups.replicate}) time(*group, dp);
  }
  time(grid_.tp(), tp);
  time(grid_.cp(), cp);
  time(grid_.pp(), pp);
  time(grid_.embedding(), pp);
  time(grid_.ep(), ep);
  time(grid_.world(), all);
}

}  // namespace nanotron::comm
