// Collectives against their closed forms.

#include <gtest/gtest.h>

#include <cmath>

#include "nanotron/base/error.hpp"
#include "nanotron/simulation/operation_time.hpp"

namespace nanotron::simulation {
namespace {

using comm::Operation;

deck::Machine machine_of(double latency) {
  deck::Machine m;
  m.name = "m";
  m.node = {.ranks = 4, .cores = 0, .memory_bytes = 1.0, .link = 100.0, .latency = latency};
  m.network = {.rails = 2, .rail = 10.0, .latency = 10.0 * latency};
  return m;
}

TEST(CollectiveTime, OfARingIsItsShareOfTheBytes) {
  const deck::Machine m = machine_of(0.0);
  for (const int n : {2, 3, 4}) {
    const GroupPlacement group{n, 1};
    const double share = static_cast<double>(n - 1) / n;
    EXPECT_DOUBLE_EQ(collective_seconds(Operation::all_reduce, 1000.0, group, m), 2.0 * share * 10.0);
    EXPECT_DOUBLE_EQ(collective_seconds(Operation::all_gather, 1000.0, group, m), share * 10.0);
    EXPECT_DOUBLE_EQ(collective_seconds(Operation::reduce_scatter, 1000.0, group, m), share * 10.0);
  }
  EXPECT_EQ(collective_seconds(Operation::all_reduce, 1000.0, {1, 1}, m), 0.0);
}

// Two rails of 10 for 4 ranks: 5 a rank; a group with g ranks on each node has g of these shares.
TEST(CollectiveTime, BetweenNodesHasTheRailsOfItsRanks) {
  const deck::Machine m = machine_of(0.0);
  EXPECT_DOUBLE_EQ(collective_seconds(Operation::all_gather, 1000.0, {2, 2}, m), 0.5 * 1000.0 / 5.0);
  EXPECT_DOUBLE_EQ(collective_seconds(Operation::all_gather, 1000.0, {8, 2}, m), 7.0 / 8.0 * 1000.0 / 20.0);
  EXPECT_DOUBLE_EQ(collective_seconds(Operation::send, 1000.0, {2, 2}, m), 1000.0 / 5.0);
  EXPECT_DOUBLE_EQ(collective_seconds(Operation::send, 1000.0, {2, 1}, m), 1000.0 / 100.0);
  EXPECT_DOUBLE_EQ(collective_seconds(Operation::all_to_all, 800.0, {8, 2}, m), 4.0 / 8.0 * 800.0 / 5.0);
}

// Eight copies to 2 nodes of 4 ranks: 1.992 of a row's nodes have one, half of them another node; 5.251 of its ranks,
// three quarters of them another rank of a node. In one node an all-to-all.
TEST(CollectiveTime, OfAnExchangeByNodeIsARowForEachNode) {
  deck::Machine m = machine_of(0.0);
  const double outside = 2.0 * (1.0 - std::pow(0.5, 8.0)) / 2.0, inside = 8.0 * (1.0 - std::pow(0.875, 8.0)) * 0.75;
  EXPECT_DOUBLE_EQ(exchange_by_node_seconds(800.0, 8.0, {8, 2}, m), 100.0 * outside / 5.0);
  m.node.link = 10.0;
  EXPECT_DOUBLE_EQ(exchange_by_node_seconds(800.0, 8.0, {8, 2}, m), 100.0 * inside / 10.0);
  // A library that reaches 2 bytes per second of copies to both nodes.
  EXPECT_DOUBLE_EQ(exchange_by_node_seconds(800.0, 8.0, {8, 2}, m, 2.0),
                   100.0 * 2.0 * (1.0 - std::pow(0.5, 8.0)) / 2.0);
  EXPECT_DOUBLE_EQ(exchange_by_node_seconds(800.0, 8.0, {4, 1}, m),
                   collective_seconds(Operation::all_to_all, 800.0, {4, 1}, m));
}

// n = 64 on 16 nodes, no bytes to speak of: 2 (48 + 15 x 10) along the ring, 2 (3 + 4 x 10) along the tree.
TEST(CollectiveTime, OfSmallMessagesIsTheLatencyOfTheTree) {
  const deck::Machine m = machine_of(1.0);
  EXPECT_DOUBLE_EQ(collective_seconds(Operation::all_reduce, 0.0, {64, 16}, m), 2.0 * 43.0);
  EXPECT_DOUBLE_EQ(collective_seconds(Operation::reduce_scatter, 0.0, {64, 16}, m), 48.0 + 150.0);
  EXPECT_DOUBLE_EQ(collective_seconds(Operation::all_reduce, 0.0, {2, 1}, m), 2.0);
}

TEST(CollectiveTime, GrowsWithBytesAndNodes) {
  const deck::Machine m = machine_of(1e-3);
  for (const Operation operation : {Operation::all_reduce, Operation::all_gather, Operation::all_to_all}) {
    EXPECT_LT(collective_seconds(operation, 1e3, {8, 2}, m), collective_seconds(operation, 2e3, {8, 2}, m));
    EXPECT_LT(collective_seconds(operation, 1e3, {4, 1}, m), collective_seconds(operation, 1e3, {8, 2}, m));
  }
}

TEST(CollectiveTime, IsNotGuessedWhereTheFileIsSilent) {
  deck::Machine m = machine_of(0.0);
  m.network = {};
  try {
    collective_seconds(Operation::all_reduce, 1.0, {8, 2}, m);
    FAIL() << "an all-reduce without a network";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), ExitCode::deck_error);
    EXPECT_NE(std::string(e.what()).find("a group &network"), std::string::npos) << e.what();
  }
}

TEST(CollectiveTime, PlacesRanksInNodesInTheirOrder) {
  const deck::Machine m = machine_of(0.0);
  EXPECT_EQ(placement_of({0, 1, 2, 3}, m).nodes, 1);
  EXPECT_EQ(placement_of({3, 4}, m).nodes, 2);
  EXPECT_EQ(placement_of({0, 4, 8, 12}, m).per_node(), 1);
}

// ranks_of_group is what ProcessGrid makes: the same sizes, and this rank where Group says it is.
TEST(CollectiveTime, KnowsTheRanksOfEveryGroup) {
  const comm::GridShape shape{.dp = 4, .pp = 3, .cp = 2, .tp = 2, .shards = 4, .ep = 2};
  for (int rank = 0; rank < shape.size(); ++rank) {
    const comm::GridCoordinate at = comm::coordinate_of(shape, rank);
    comm::ProcessGrid grid = comm::ProcessGrid::planned(shape, at);
    const auto expect = [&](comm::Group& group, comm::GroupKind kind) {
      const std::vector<int> ranks = comm::ranks_of_group(shape, at, kind);
      ASSERT_EQ(static_cast<int>(ranks.size()), group.size()) << static_cast<int>(kind);
      EXPECT_EQ(ranks[static_cast<std::size_t>(group.rank())], rank) << static_cast<int>(kind);
    };
    expect(grid.tp(), comm::GroupKind::tp);
    expect(grid.cp(), comm::GroupKind::cp);
    expect(grid.pp(), comm::GroupKind::pp);
    expect(grid.ep(), comm::GroupKind::ep);
    expect(grid.world(), comm::GroupKind::world);
    int kind = static_cast<int>(comm::GroupKind::data);
    for (const comm::ReplicaSet set : {comm::ReplicaSet::data_parallel, comm::ReplicaSet::expert_data_parallel}) {
      comm::DataGroups& groups = grid.data_groups(set);
      for (comm::Group* const group : {&groups.data, &groups.shard, &groups.replicate}) {
        expect(*group, static_cast<comm::GroupKind>(kind++));
      }
    }
  }
}

}  // namespace
}  // namespace nanotron::simulation
