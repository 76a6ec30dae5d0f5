#include "nanotron/comm/watch/payload_watch.hpp"

#include <algorithm>

namespace nanotron::comm {

// A group's number: its kind and its lowest rank of the world. Groups of a kind have no rank in common.
void WatchedGroups::watch_by(PayloadWatch* watch) {
  grid_.for_each_group([&](Group& group, GroupKind kind) {
    const std::vector<int> ranks = ranks_of_group(grid_.shape(), grid_.coordinate(), kind);
    const auto lowest = static_cast<std::uint64_t>(*std::ranges::min_element(ranks));
    group.account().watched = {watch, static_cast<std::uint64_t>(kind) << 24 | lowest};
  });
}

}  // namespace nanotron::comm
