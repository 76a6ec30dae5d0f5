#include "nanotron/comm/watch/payload_watch.hpp"

#include <algorithm>

namespace nanotron::comm {

// A group's number: its kind and its lowest rank of the world. Groups of a kind have no rank in common.
void WatchedGroups::watch_by(PayloadWatch* watch) {
  const auto set = [&](Group& group, GroupKind kind) {
    const std::vector<int> ranks = ranks_of_group(grid_.shape(), grid_.coordinate(), kind);
    const auto lowest = static_cast<std::uint64_t>(*std::ranges::min_element(ranks));
    group.account().watched = {watch, static_cast<std::uint64_t>(kind) << 24 | lowest};
  };
  DataGroups& data = grid_.data_groups(ReplicaSet::data_parallel);
  set(data.data, GroupKind::data);
  set(data.shard, GroupKind::shard);
  set(data.replicate, GroupKind::replicate);
  if (grid_.shape().ep > 1) {
    DataGroups& experts = grid_.data_groups(ReplicaSet::expert_data_parallel);
    set(experts.data, GroupKind::expert_data);
    set(experts.shard, GroupKind::expert_shard);
    set(experts.replicate, GroupKind::expert_replicate);
  }
  set(grid_.tp(), GroupKind::tp);
  set(grid_.cp(), GroupKind::cp);
  set(grid_.pp(), GroupKind::pp);
  set(grid_.embedding(), GroupKind::embedding);
  set(grid_.ep(), GroupKind::ep);
}

}  // namespace nanotron::comm
