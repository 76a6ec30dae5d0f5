// ranks: 1
// Tokens that travel once to each node with experts of theirs, and what they bring, against plain loops.
#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "nanotron/kernels/moe/expert_rows.hpp"
#include "nanotron/kernels/moe/node_rows.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

TEST(NodeRows, GoOnceToEachNodeWithTheirExperts) {
  Timers timers;
  Device device(timers);
  const index_t tokens = 300, k = 4, nodes = 3, of_node = 5, all = tokens * k, sent = tokens * 3;
  std::mt19937 random(5);
  Array<std::int64_t> experts(all), rows(all, 0), node_of(all), node_rows(all), sources(sent, -7), counts(nodes);
  auto weights = Array<double>::random(all, 3);
  std::map<std::pair<std::int64_t, index_t>, std::size_t> expected;  // (node, token): node row
  for (index_t t = 0; t < tokens; ++t) {
    std::vector<std::int64_t> of_token(static_cast<std::size_t>(nodes * of_node));
    std::iota(of_token.begin(), of_token.end(), 0);
    std::ranges::shuffle(of_token, random);
    for (index_t j = 0; j < k; ++j) {
      const auto i = static_cast<std::size_t>(t * k + j);
      experts.host[i] = t % 50 == 7 ? -1 : of_token[static_cast<std::size_t>(j)];  // an empty position
      rows.host[i] = experts.host[i] < 0 || random() % 9 == 0 ? -1 : 0;            // dropped
      if (rows.host[i] == 0) expected[{experts.host[i] / of_node, t}] = 0;
    }
  }
  std::vector<std::int64_t> expected_counts(nodes, 0);
  std::size_t n = 0;
  for (auto& [at, row] : expected) row = n++, ++expected_counts[static_cast<std::size_t>(at.first)];
  experts.push(), rows.push();

  kernels::mark_nodes(device, k, of_node, experts.read(), rows.read(), node_of.vector(), node_rows.vector(),
                      sources.vector());
  Array<std::int64_t> stretches(kernels::stretches_of(all) * nodes);
  kernels::assign_rows(device, node_of.read(), node_rows.vector(), sources.vector(), counts.vector(),
                       stretches.matrix(kernels::stretches_of(all), nodes));
  Array<double> values(sent * 2 * k), back(sent * k), of_assignments(all, 9.0);
  kernels::gather_choices<double>(device, k, of_node, experts.read(), rows.read(), sources.read(), weights.read(),
                                  values.vector());
  const auto found = static_cast<index_t>(n);
  Array<std::int64_t> experts_there(found * k), rows_there(found * k), sources_there(all, -7);
  Array<double> weights_there(found * k);
  kernels::read_choices<double>(device, k, Vector<const double>(values.data(), found * 2 * k), experts_there.vector(),
                                weights_there.vector(), rows_there.vector(), sources_there.vector());
  device.fence();
  counts.pull(), experts_there.pull(), rows_there.pull(), weights_there.pull(), sources_there.pull();
  EXPECT_EQ(counts.host, expected_counts);
  EXPECT_EQ(std::ranges::count(sources_there.host, 0), all);
  for (const auto& [at, row] : expected) {
    for (index_t j = 0; j < k; ++j) {
      const auto i = static_cast<std::size_t>(at.second * k + j), there = row * k + static_cast<std::size_t>(j);
      const bool is_here = rows.host[i] == 0 && experts.host[i] / of_node == at.first;
      ASSERT_EQ(experts_there.host[there], is_here ? experts.host[i] % of_node : -1);
      ASSERT_EQ(rows_there.host[there], is_here ? 0 : -1);
      if (is_here) {
        ASSERT_EQ(weights_there.host[there], weights.host[i]);
      }
    }
  }
  // Back: of each assignment its value in its node row.
  for (std::size_t i = 0; i < back.host.size(); ++i) back.host[i] = static_cast<double>(i + 1);
  back.push();
  kernels::scatter_choices<double>(device, k, of_node, experts.read(), rows.read(), node_rows.read(), back.read(),
                                   of_assignments.vector());
  device.fence();
  of_assignments.pull();
  for (index_t i = 0; i < all; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double value = rows.host[at] < 0 ? 0.0
                                           : static_cast<double>(expected.at({experts.host[at] / of_node, i / k}) * k +
                                                                 static_cast<std::size_t>(i % k) + 1);
    ASSERT_EQ(of_assignments.host[at], value) << i;
  }
}

TEST(NodeRows, CountsAreJoinedAndSplit) {
  Timers timers;
  Device device(timers);
  Array<std::int64_t> node_rows(2), rows(6), joined(8), split(6);
  node_rows.host = {3, 4};
  rows.host = {10, 11, 12, 20, 21, 22};
  node_rows.push(), rows.push();
  kernels::join_node_counts(device, node_rows.read(), rows.read(), joined.matrix(2, 4));
  kernels::split_node_counts(device, joined.read(2, 4), split.vector());
  device.fence();
  joined.pull(), split.pull();
  EXPECT_EQ(joined.host, (std::vector<std::int64_t>{3, 10, 11, 12, 4, 20, 21, 22}));
  EXPECT_EQ(split.host, (std::vector<std::int64_t>{10, 20, 11, 21, 12, 22}));
}

}  // namespace
}  // namespace nanotron::test
