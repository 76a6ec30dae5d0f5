#include "nanotron/comm/transport/nccl_memory.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "device_transport.hpp"
#include "nanotron/comm/transport/messages.hpp"

namespace nanotron::comm {
namespace {

constexpr double page = 2 << 20;  // of cuMemCreate
double allocated(double bytes) { return page * std::ceil(bytes / page); }

// Buffers of a connection and the memory of its counters (include/device.h, include/comm.h).
constexpr double ll = 8 * 512 * 8 * 16, ll128 = 120 * 640 * 8 * 8, simple = 4 << 20, counters = 4096;
constexpr double infos = 512;  // of a channel and peer: two sends and two receives (include/device.h)
constexpr double shared_steps = 16 * (128 << 10);  // of a channel: NCCL_SHARED_STEPS of NCCL_P2P_NET_CHUNKSIZE

const double near_receive = allocated(counters + ll + ll128 + simple), near_send = allocated(counters);
const double far_receive = allocated(ll + ll128 + simple), far_send = allocated(ll128 + simple);
const double near_both = near_receive + near_send, far_both = far_receive + far_send;

int at_most(int channels, int limit) { return limit > 0 ? std::min(channels, limit) : channels; }
int next_power_of_two(int n) { return static_cast<int>(std::bit_ceil(static_cast<unsigned>(n))); }

struct Channels {
  int collective, messages, of_a_peer, multicast;
  int opened() const { return std::max({collective, messages, multicast}); }
};

int searched(const NcclPlan& p, const NcclNode& node) {
  if (p.nodes == 1) return 12;
  constexpr double fast = 25e9;
  const int rails = std::max(1, node.rails * p.local / node.ranks);
  return rails <= 4 && node.rail >= fast ? 2 * rails : rails;
}

Channels channels_of(const NcclPlan& p, const NcclNode& node) {
  Channels c{.collective = at_most(2 * searched(p, node), p.max_blocks), .messages = 0, .of_a_peer = 0, .multicast = 0};
  c.of_a_peer = c.messages = next_power_of_two(c.collective);
  if (p.nodes > 1) {
    constexpr double of_channel = 14e9;
    constexpr int peers_of_batch = 8;
    const int batches = (p.ranks + peers_of_batch - 1) / peers_of_batch;
    c.of_a_peer = next_power_of_two(std::max(1, static_cast<int>(std::ceil(node.rail / of_channel))));
    while (c.of_a_peer > 1 && c.of_a_peer * batches > c.messages) c.of_a_peer /= 2;
  }
  if (node.multicast && p.local > 1) c.multicast = at_most(16, p.max_blocks);
  return c;
}

int ends_of(const NcclPlan& p, const Channels& c) { return p.nodes == 1 ? 0 : (c.collective + p.local - 1) / p.local; }

// Of a channel one rank of the node sends to the next node and one receives from the last: they take turns.
double ring_bytes(const NcclPlan& p, const Channels& c) {
  return c.collective * near_both + ends_of(p, c) * (far_both - near_both);
}

// A chain the other way in the node, between nodes a parent and two children.
double tree_bytes(const NcclPlan& p, const Channels& c) {
  if (p.ranks == 2) return 0.0;
  const double chain = p.local > 1 ? c.collective * near_both : 0.0;
  return chain + ends_of(p, c) * std::min(3, p.nodes - 1) * far_both;
}

double multicast_bytes(const NcclPlan& p, const Channels& c) {
  constexpr double chunks = 8 * (128 << 10);  // NCCL_STEPS of NCCL_NVLS_CHUNKSIZE
  return allocated(c.multicast * 2 * chunks * p.local);
}

double exchange_bytes(const NcclPlan& p, const Channels& c) {
  const double far = p.nodes > 1 ? 2 * allocated(shared_steps * c.messages) : 0.0;
  return (p.local - 1) * c.of_a_peer * near_both + far;
}

double link_bytes(const NcclPlan& p, const Channels& c) {
  const double shared = allocated(shared_steps * c.messages);
  const double send = p.nodes == 1 ? c.of_a_peer * near_send : shared;
  const double receive = p.nodes == 1 ? c.of_a_peer * near_receive : shared;
  return (p.use.sends ? send : 0.0) + (p.use.receives ? receive : 0.0);
}

NcclPlan plan_of(const std::vector<int>& ranks, int me, int ranks_of_node) {
  std::set<int> nodes;
  NcclPlan plan{.ranks = static_cast<int>(ranks.size()), .local = 0};
  for (const int rank : ranks) {
    nodes.insert(rank / ranks_of_node);
    if (rank / ranks_of_node == me / ranks_of_node) ++plan.local;
  }
  plan.nodes = static_cast<int>(nodes.size());
  return plan;
}

// Groups with a channel for bulk data over NCCL (process_grid.cpp).
bool has_channel(const GridShape& s, GroupKind kind) {
  switch (kind) {
    case GroupKind::world:
      return false;
    case GroupKind::tp:
      return s.tp_sums == Sums::any_order;
    case GroupKind::replicate:
      return s.shards > 1;
    case GroupKind::expert_replicate:
      return s.has_expert_groups() && s.shards > 1;
    case GroupKind::expert_data:
    case GroupKind::expert_shard:
      return s.has_expert_groups();
    case GroupKind::ep:
      return s.ep > 1;
    default:
      return true;
  }
}

// Of the links that messages of a group go through: whether there are any.
bool carries_messages(std::span<const PlannedOperation> used, GroupKind kind) {
  return std::ranges::any_of(used, [&](const PlannedOperation& o) {
    return o.group == kind && (o.operation == Operation::send || o.operation == Operation::receive);
  });
}

NcclUse use_of(std::span<const PlannedOperation> used, GroupKind kind) {
  NcclUse use;
  for (const PlannedOperation& o : used) {
    if (o.group != kind || o.operation == Operation::send || o.operation == Operation::receive) continue;
    use.exchanges |= o.operation == Operation::all_to_all;
    use.collectives |= o.operation != Operation::all_to_all;
    use.all_reduces |= o.operation == Operation::all_reduce;
  }
  return use;
}

void add_links(std::vector<NcclPlan>& plans, const std::vector<int>& ring, int me, int blocks, int ranks_of_node) {
  const auto size = ring.size(), at = static_cast<std::size_t>(std::ranges::find(ring, me) - ring.begin());
  for (const std::size_t other : {(at + 1) % size, (at + size - 1) % size}) {
    NcclPlan link = plan_of({me, ring[other]}, me, ranks_of_node);
    link.max_blocks = blocks_of_messages(blocks);
    for (std::size_t lane = 0; lane < message_lanes; ++lane) {
      link.use = {.sends = true};
      plans.push_back(link);
      link.use = {.receives = true};
      plans.push_back(link);
    }
  }
}

}  // namespace

NcclMemory nccl_memory(const NcclPlan& plan, const NcclNode& node) {
  const Channels c = channels_of(plan, node);
  double bytes = 2 * page + c.opened() * (2 * page + allocated(infos * plan.ranks));
  if (c.multicast > 0) bytes += page + c.multicast * page;
  if (plan.use.collectives) bytes += ring_bytes(plan, c);
  if (plan.use.all_reduces) bytes += tree_bytes(plan, c);
  const bool chooses_multicast = plan.use.all_reduces || (plan.use.collectives && plan.nodes == 1);
  if (c.multicast > 0 && chooses_multicast) bytes += multicast_bytes(plan, c);
  if (plan.use.exchanges) bytes += exchange_bytes(plan, c);
  return {.communicators = 1, .channels = c.opened(), .bytes = bytes + link_bytes(plan, c)};
}

std::uint64_t nccl_bytes_taken() { return detail::device_transport_bytes(); }

std::vector<NcclPlan> nccl_plans(const GridShape& shape, const GridCoordinate& at,
                                 std::span<const PlannedOperation> used, int message_blocks, int ranks_of_node) {
  std::vector<NcclPlan> plans;
  const int me = rank_of(shape, at);
  for (int k = static_cast<int>(GroupKind::data); k <= static_cast<int>(GroupKind::embedding); ++k) {
    const auto kind = static_cast<GroupKind>(k);
    const std::vector<int> ranks = ranks_of_group(shape, at, kind);
    if (ranks.size() < 2) continue;
    if (has_channel(shape, kind)) {
      plans.push_back(plan_of(ranks, me, ranks_of_node));
      plans.back().use = use_of(used, kind);
    }
    if (carries_messages(used, kind)) add_links(plans, ranks, me, message_blocks, ranks_of_node);
  }
  return plans;
}

}  // namespace nanotron::comm
