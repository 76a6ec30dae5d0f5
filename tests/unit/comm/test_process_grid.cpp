// ranks: 1 2 3 4 6 8
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/process_grid.hpp"
#include "support/world.hpp"

namespace nanotron::comm {
namespace {

std::vector<std::string> all_orders() {
  std::vector<std::string> axes{"cp", "dp", "pp", "tp"}, orders;
  do {
    orders.push_back(axes[0] + "-" + axes[1] + "-" + axes[2] + "-" + axes[3]);
  } while (std::next_permutation(axes.begin(), axes.end()));
  return orders;
}

TEST(GridMapping, IsABijectionInEveryOrder) {
  ASSERT_EQ(all_orders().size(), 24u);
  for (const std::string& order : all_orders()) {
    const GridShape shape{.dp = 3, .pp = 2, .cp = 5, .tp = 4, .order = order};
    std::set<int> seen;
    for (int r = 0; r < shape.size(); ++r) {
      const GridCoordinate c = coordinate_of(shape, r);
      EXPECT_TRUE(c.dp < 3 && c.pp < 2 && c.cp < 5 && c.tp < 4);
      EXPECT_EQ(rank_of(shape, c), r);
      seen.insert(((c.dp * 2 + c.pp) * 5 + c.cp) * 4 + c.tp);
    }
    EXPECT_EQ(seen.size(), 120u);
  }
}

TEST(GridMapping, TheFirstAxisIsTheInnermost) {
  const GridShape tp_first{.dp = 2, .pp = 1, .cp = 1, .tp = 4};
  EXPECT_EQ(rank_of(tp_first, {.dp = 1, .tp = 3}), 7);
  EXPECT_EQ(rank_of(tp_first, {.dp = 0, .tp = 3}), 3);
  const GridShape dp_first{.dp = 2, .pp = 1, .cp = 1, .tp = 4, .order = "dp-tp-cp-pp"};
  EXPECT_EQ(rank_of(dp_first, {.dp = 1, .tp = 0}), 1);
  EXPECT_EQ(rank_of(dp_first, {.dp = 0, .tp = 3}), 6);
}

TEST(GridMapping, AWrongOrderIsRefused) {
  for (const char* order : {"", "tp-cp-pp", "tp-tp-pp-dp", "tp-cp-pp-xx", "tp,cp,pp,dp", "tp-cp-pp-dp-tp"}) {
    try {
      rank_of({.dp = 1, .pp = 1, .cp = 1, .tp = 1, .order = order}, {});
      ADD_FAILURE() << order;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::deck_error);
    }
  }
}

TEST(Placement, SaysWhichGroupsCrossHosts) {
  const GridShape shape{.dp = 2, .pp = 1, .cp = 1, .tp = 4};
  EXPECT_EQ(placement_report(shape, {"a", "a", "a", "a", "b", "b", "b", "b"}),
            "grid: 8 ranks on 2 hosts, order tp-cp-pp-dp (innermost first)\n"
            "  tp = 4    every group inside one host\n"
            "  cp = 1    -\n"
            "  pp = 1    -\n"
            "  dp = 2    4 of 4 groups cross hosts (up to 2 hosts per group)\n"
            "  a: ranks 0-3\n"
            "  b: ranks 4-7\n");
  const std::string badly = placement_report(shape, {"a", "a", "b", "b", "b", "b", "c", "a"});
  EXPECT_NE(badly.find("tp = 4    2 of 2 groups cross hosts (up to 3 hosts per group)"), std::string::npos) << badly;
  EXPECT_NE(badly.find("a: ranks 0-1, 7"), std::string::npos) << badly;
}

TEST(ProcessGrid, GroupsHoldTheRightRanks) {
  const Communicator world = Communicator::duplicate(test::world());
  for (const char* order : {"tp-cp-pp-dp", "dp-pp-cp-tp"}) {
    for (int tp = 1; tp <= world.size(); ++tp) {
      if (world.size() % tp != 0) continue;
      const GridShape shape{.dp = world.size() / tp, .pp = 1, .cp = 1, .tp = tp, .order = order};
      ProcessGrid grid(world, shape, Transport::mpi);
      EXPECT_EQ(grid.coordinate(), coordinate_of(shape, world.rank()));
      EXPECT_EQ(grid.tp().rank(), grid.tp_rank());
      EXPECT_EQ(grid.data_parallel().rank(), grid.dp_rank());
      EXPECT_EQ(grid.tp().size(), tp);
      EXPECT_EQ(grid.data_parallel().size(), shape.dp);
      EXPECT_EQ(grid.pp().size() * grid.cp().size(), 1);
      double tp_sum = 0, dp_sum = 0;
      for (int t = 0; t < tp; ++t) tp_sum += rank_of(shape, {.dp = grid.dp_rank(), .tp = t});
      for (int d = 0; d < shape.dp; ++d) dp_sum += rank_of(shape, {.dp = d, .tp = grid.tp_rank()});
      EXPECT_EQ(sum(grid.tp(), static_cast<double>(world.rank())), tp_sum);
      EXPECT_EQ(sum(grid.data_parallel(), static_cast<double>(world.rank())), dp_sum);
      EXPECT_NE(grid.placement().find("on 1 host,"), std::string::npos) << grid.placement();
    }
  }
}

// Neighbouring replicas have all experts between them; those with the same ones lie ep apart.
TEST(ProcessGrid, ExpertsLieOverNeighbouringReplicas) {
  const Communicator world = Communicator::duplicate(test::world());
  const int ranks = world.size(), rank = world.rank();
  for (int ep = 1; ep <= ranks; ++ep) {
    for (int shards = 1; shards <= ranks; ++shards) {
      if (ranks % ep != 0 || ranks % shards != 0 || (shards % ep != 0 && ep % shards != 0)) continue;
      ProcessGrid grid(world, {.dp = ranks, .shards = shards, .ep = ep}, Transport::mpi);
      const int same = std::max(1, shards / ep);
      EXPECT_EQ(grid.ep().size(), ep);
      EXPECT_EQ(grid.ep().rank(), rank % ep);
      EXPECT_EQ(grid.data_groups(ReplicaSet::expert_data_parallel).data.size(), ranks / ep);
      EXPECT_EQ(grid.data_groups(ReplicaSet::expert_data_parallel).data.rank(), rank / ep);
      EXPECT_EQ(grid.data_groups(ReplicaSet::expert_data_parallel).shard.size(), same);
      EXPECT_EQ(grid.data_groups(ReplicaSet::expert_data_parallel).shard.rank(), rank / ep % same);
      EXPECT_EQ(grid.data_groups(ReplicaSet::expert_data_parallel).replicate.size(), ranks / ep / same);
      EXPECT_EQ(grid.data_groups(ReplicaSet::expert_data_parallel).replicate.rank(), rank / ep / same);
      EXPECT_EQ(max(grid.data_groups(ReplicaSet::expert_data_parallel).data, static_cast<double>(rank % ep)),
                rank % ep);
      EXPECT_EQ(max(grid.ep(), static_cast<double>(rank / ep)), rank / ep);
    }
  }
}

// Whole experts lie over all ranks of a stage, tp varying fastest, in any order of ranks.
TEST(ProcessGrid, WholeExpertsLieOverNeighboursOfAStage) {
  for (const char* order : {"tp-cp-pp-dp", "dp-pp-cp-tp"}) {
    for (const int ep : {1, 2, 4, 8, 24}) {
      for (const int shards : {1, 2, 6}) {
        const GridShape shape{
            .dp = 3, .pp = 2, .cp = 2, .tp = 4, .shards = shards, .ep = ep, .ep_spans_tp = true, .order = order};
        const int same = shards == 1 ? 1 : std::max(1, 4 * shards / ep);
        if (shards > 1 && 4 * shards % ep != 0 && ep % (4 * shards) != 0) continue;
        std::map<std::vector<int>, int> members;
        for (int rank = 0; rank < shape.size(); ++rank) {
          const GridCoordinate at = coordinate_of(shape, rank);
          ProcessGrid grid = ProcessGrid::planned(shape, at);
          const std::vector<int> ranks = ranks_of_group(shape, at, GroupKind::ep);
          const int me = (at.dp * 2 + at.cp) * 4 + at.tp;
          for (int i = 0; i < ep; ++i) {
            const int other = me / ep * ep + i;
            EXPECT_EQ(ranks[static_cast<std::size_t>(i)],
                      rank_of(shape, {.dp = other / 8, .pp = at.pp, .cp = other / 4 % 2, .tp = other % 4}));
          }
          EXPECT_EQ(ranks[static_cast<std::size_t>(grid.ep().rank())], rank);
          DataGroups& of_experts = grid.data_groups(ReplicaSet::expert_data_parallel);
          EXPECT_EQ(of_experts.data.size(), 24 / ep);
          EXPECT_EQ(of_experts.shard.size(), same);
          EXPECT_EQ(of_experts.replicate.size(), 24 / ep / same);
          for (const auto& [group, kind] : {std::pair(&of_experts.data, GroupKind::expert_data),
                                            {&of_experts.shard, GroupKind::expert_shard},
                                            {&of_experts.replicate, GroupKind::expert_replicate}}) {
            const std::vector<int> those = ranks_of_group(shape, at, kind);
            ASSERT_EQ(static_cast<int>(those.size()), group->size());
            EXPECT_EQ(those[static_cast<std::size_t>(group->rank())], rank);
            for (const int r : those) EXPECT_EQ(expert_rank(shape, coordinate_of(shape, r)) % ep, me % ep);
          }
          // Over the groups of owners and tp, one rank owns the shard of an expert.
          if (grid.may_own(ReplicaSet::expert_data_parallel)) ++members[{at.pp, me % ep, of_experts.shard.rank()}];
        }
        EXPECT_EQ(static_cast<int>(members.size()), 2 * ep * same);
        for (const auto& [shard, owners] : members) EXPECT_EQ(owners, 1);
      }
    }
  }
}

TEST(ProcessGrid, EachGroupComesOnceWithItsKind) {
  for (const auto& [ep, whole] : {std::pair(1, false), {2, false}, {1, true}, {8, true}}) {
    const GridShape shape{
        .dp = 4, .pp = 2, .cp = 2, .tp = 2, .shards = 2, .ep = ep, .ep_spans_tp = whole, .ties_embedding = true};
    const GridCoordinate at = coordinate_of(shape, 0);
    ProcessGrid grid = ProcessGrid::planned(shape, at);
    std::set<GroupKind> kinds;
    std::set<const Group*> groups;
    grid.for_each_group([&](const Group& group, GroupKind kind) {
      kinds.insert(kind);
      groups.insert(&group);
      EXPECT_EQ(static_cast<std::size_t>(group.size()), ranks_of_group(shape, at, kind).size());
    });
    EXPECT_EQ(kinds.size(), shape.has_expert_groups() ? 11u : 8u);
    EXPECT_EQ(groups.size(), kinds.size());
    EXPECT_FALSE(kinds.contains(GroupKind::world));
  }
}

TEST(ProcessGrid, AGridOfAnotherSizeIsRefused) {
  const Communicator world = Communicator::duplicate(test::world());
  const GridShape shape{.dp = world.size() + 1};
  try {
    ProcessGrid grid(world, shape, Transport::mpi);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::deck_error);
    const std::string text = error.what();
    EXPECT_NE(text.find(std::to_string(world.size()) + " ranks"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace nanotron::comm
