// NCCL's buffers by hand, from the constants of NCCL 2.30.7 (nccl_memory.hpp): MiB of one rank on nodes of 8 H100.
#include <gtest/gtest.h>

#include "nanotron/comm/transport/nccl_memory.hpp"

namespace nanotron::comm {
namespace {

constexpr NcclNode h100{.ranks = 8, .rails = 8, .rail = 42.5e9, .multicast = true};
constexpr NcclNode a100{.ranks = 8, .rails = 8, .rail = 21e9, .multicast = false};

double mib(const NcclPlan& plan, const NcclNode& node = h100) { return nccl_memory(plan, node).bytes / (1 << 20); }

// 2 allocations of 2 MiB; 3 a channel; with multicast 1 a channel and 1.
TEST(NcclMemory, OfALinkInANode) {
  const NcclPlan link{.ranks = 2, .local = 2, .nodes = 1, .max_blocks = 4};
  NcclPlan sends = link, receives = link;
  sends.use.sends = receives.use.receives = true;
  EXPECT_EQ(nccl_memory(link, h100).channels, 4);
  EXPECT_EQ(mib(link), 2 * 2 + 4 * 3 * 2 + (1 + 4) * 2);
  EXPECT_EQ(mib(sends), mib(link) + 4 * 2);      // counters
  EXPECT_EQ(mib(receives), mib(link) + 4 * 10);  // counters, 0.5 + 4.69 + 4 MiB of buffers
  EXPECT_EQ(mib(receives, a100), 2 * 2 + 4 * 3 * 2 + 4 * 10);
}

// 24 channels of collectives are 32 of messages, 16 of multicast.
TEST(NcclMemory, OfALinkThatTakesAllChannels) {
  NcclPlan link{.ranks = 2, .local = 2, .nodes = 1, .max_blocks = 64, .use = {.receives = true}};
  EXPECT_EQ(nccl_memory(link, h100).channels, 32);
  EXPECT_EQ(mib(link), 2 * 2 + 32 * 3 * 2 + (1 + 16) * 2 + 32 * 10);
  link.max_blocks = 0;
  EXPECT_EQ(mib(link), 2 * 2 + 32 * 3 * 2 + (1 + 16) * 2 + 32 * 10);
  link.max_blocks = 3;  // messages take powers of two
  EXPECT_EQ(mib(link), 2 * 2 + 4 * 3 * 2 + (1 + 3) * 2 + 4 * 10);
}

// One rail of 400 Gb/s: 2 x 2 channels; 16 chunks of 128 KiB each, shared by all sends and by all receives.
TEST(NcclMemory, OfALinkBetweenNodes) {
  NcclPlan link{.ranks = 2, .local = 1, .nodes = 2, .max_blocks = 4, .use = {.sends = true}};
  EXPECT_EQ(nccl_memory(link, h100).channels, 4);
  EXPECT_EQ(mib(link), 2 * 2 + 4 * 3 * 2 + 4 * 2);
  EXPECT_EQ(mib(link, a100), 2 * 2 + 2 * 3 * 2 + 2 * 2);  // 200 Gb/s: 2 channels
}

TEST(NcclMemory, OfCollectivesInANode) {
  NcclPlan node{.ranks = 8, .local = 8, .nodes = 1, .use = {.collectives = true}};
  const double base = 2 * 2 + 32 * 3 * 2, multicast = (1 + 16) * 2 + 16 * 2 * 8;  // 8 heads, 1 MiB each way
  const double ring = 24 * (10 + 2), tree = ring;                                 // the other way
  EXPECT_EQ(mib(node), base + multicast + ring);
  EXPECT_EQ(mib(node, a100), base + ring);
  node.use.all_reduces = true;
  EXPECT_EQ(mib(node), base + multicast + ring + tree);
  const NcclPlan pair{.ranks = 2, .local = 2, .nodes = 1, .use = {.collectives = true, .all_reduces = true}};
  EXPECT_EQ(mib(pair, a100), base + ring);  // the tree of two is the ring
  const NcclPlan unused{.ranks = 8, .local = 8, .nodes = 1};
  EXPECT_EQ(mib(unused), base + (1 + 16) * 2);
}

// 8 rails: 16 channels, of which a rank sends 2 to the next node and receives 2.
TEST(NcclMemory, OfCollectivesBetweenNodes) {
  NcclPlan group{.ranks = 64, .local = 8, .nodes = 8, .use = {.collectives = true}};
  const double base = 2 * 2 + 16 * 3 * 2 + (1 + 16) * 2, ring = 14 * 12 + 2 * (10 + 10);
  EXPECT_EQ(nccl_memory(group, h100).channels, 16);
  EXPECT_EQ(mib(group), base + ring);
  group.use.all_reduces = true;  // a chain back, a parent and two children; multicast with trees between nodes
  EXPECT_EQ(mib(group), base + ring + 16 * 12 + 2 * 3 * 20 + 16 * 2 * 8);
  const NcclPlan lone{.ranks = 4, .local = 1, .nodes = 4, .use = {.collectives = true}};
  EXPECT_EQ(mib(lone), 2 * 2 + 4 * 3 * 2 + 4 * 20);
}

TEST(NcclMemory, OfExchanges) {
  const NcclPlan node{.ranks = 8, .local = 8, .nodes = 1, .use = {.exchanges = true}};
  EXPECT_EQ(mib(node), 2 * 2 + 32 * 3 * 2 + (1 + 16) * 2 + 7 * 32 * 12);
  // Between nodes 16 channels, 4 for each peer; 2 of them where two batches of 8 peers share the 16 channels of 64.
  const NcclPlan two{.ranks = 16, .local = 8, .nodes = 2, .use = {.exchanges = true}};
  EXPECT_EQ(mib(two), 2 * 2 + 16 * 3 * 2 + (1 + 16) * 2 + 7 * 4 * 12 + 2 * 16 * 2);
  const NcclPlan eight{.ranks = 64, .local = 8, .nodes = 8, .use = {.exchanges = true}};
  EXPECT_EQ(mib(eight), 2 * 2 + 16 * 3 * 2 + (1 + 16) * 2 + 7 * 2 * 12 + 2 * 16 * 2);
}

TEST(NcclMemory, FollowsTheGroupsOfTheGrid) {
  const GridShape shape{.dp = 2, .pp = 2, .cp = 2, .tp = 2, .shards = 4};
  const std::vector<PlannedOperation> used{{.operation = Operation::all_reduce, .group = GroupKind::tp},
                                           {.operation = Operation::send, .group = GroupKind::pp},
                                           {.operation = Operation::receive, .group = GroupKind::cp},
                                           {.operation = Operation::all_gather, .group = GroupKind::shard}};
  const std::vector<NcclPlan> plans = nccl_plans(shape, {}, used, 0, 8);
  // data, shard, tp, cp and its 8 links, pp and its 8 links; the replicate group has one rank.
  ASSERT_EQ(plans.size(), 5u + 16u);
  EXPECT_EQ(plans[0].ranks, 4);  // dp x cp: ranks 0, 2, 8, 10
  EXPECT_EQ(plans[0].nodes, 2);
  EXPECT_EQ(plans[0].local, 2);
  EXPECT_EQ(plans[0].use, NcclUse{});
  EXPECT_EQ(plans[1].use, NcclUse{.collectives = true});
  EXPECT_EQ(plans[2].use, (NcclUse{.collectives = true, .all_reduces = true}));
  EXPECT_EQ(plans[4].max_blocks, 4);
  EXPECT_EQ(nccl_plans(shape, {}, used, 7, 8)[4].max_blocks, 7);
  GridShape tree = shape;
  tree.tp_sums = Sums::tree;  // through the memory of the host
  EXPECT_EQ(nccl_plans(tree, {}, used, 0, 8).size(), 4u + 16u);
}

}  // namespace
}  // namespace nanotron::comm
