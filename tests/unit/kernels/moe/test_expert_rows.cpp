// ranks: 1
// Rows of tokens sorted by expert, and back; where they cross token shards.
#include <algorithm>
#include <array>
#include <random>
#include <span>

#include "nanotron/kernels/moe/expert_rows.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

TEST(ExpertRows, AreSortedByExpertAndComeBack) {
  Timers timers;
  Device device(timers);
  const index_t tokens = 7, k = 2, hidden = 5, experts = 4;
  Array<std::int64_t> assignments(tokens * k), rows(tokens * k), source(tokens * k, -5), counts(experts);
  assignments.host = {0, 3, 3, 1, 1, 0, 3, 0, 1, 3, 0, 1, 3, 1};
  rows.host.assign(14, 0);
  rows.host[2] = rows.host[9] = -1;  // dropped
  assignments.push(), rows.push();
  Array<std::int64_t> stretches(experts);
  kernels::assign_rows(device, assignments.read(), rows.vector(), source.vector(), counts.vector(),
                       stretches.matrix(1, experts));
  device.fence();
  rows.pull(), source.pull(), counts.pull();
  EXPECT_EQ(counts.host, (std::vector<std::int64_t>{4, 5, 0, 3}));
  EXPECT_EQ(rows.host, (std::vector<std::int64_t>{0, 9, -1, 4, 5, 1, 10, 2, 6, -1, 3, 7, 11, 8}));
  EXPECT_EQ(source.host, (std::vector<std::int64_t>{0, 5, 7, 10, 3, 4, 8, 11, 13, 1, 6, 12, -5, -5}));

  const auto x = Array<double>::random(tokens * hidden, 1), values = Array<double>::random(tokens * k, 2);
  Array<double> there(12 * hidden), y(tokens * hidden, 1.0), of_rows(12), back(tokens * k, 9.0);
  const Vector<const std::int64_t> twelve(source.data(), 12);
  kernels::gather_rows<double>(device, k, x.read(tokens, hidden), twelve, there.matrix(12, hidden));
  kernels::add_rows<double>(device, there.read(12, hidden), rows.read(), y.matrix(tokens, hidden));
  kernels::gather_values<double>(device, values.read(), twelve, of_rows.vector());
  kernels::scatter_values<double>(device, of_rows.read(), rows.read(), back.vector());
  device.fence();
  y.pull(), back.pull();
  for (index_t t = 0; t < tokens; ++t) {
    const double kept = t == 1 || t == 4 ? 1.0 : 2.0;
    for (index_t c = 0; c < hidden; ++c) {
      const auto i = static_cast<std::size_t>(t * hidden + c);
      EXPECT_DOUBLE_EQ(y.host[i], 1.0 + kept * x.host[i]);
    }
  }
  for (std::size_t i = 0; i < back.host.size(); ++i) EXPECT_EQ(back.host[i], i == 2 || i == 9 ? 0.0 : values.host[i]);
}

// Blocks of rank, expert and part arrive in this order; sorted they are in the order expert, part, rank.
TEST(ExpertRows, ThatArriveInMessagesFindTheirPlaces) {
  Timers timers;
  Device device(timers);
  const index_t ranks = 3, experts = 4, parts = 2, hidden = 5;
  std::mt19937 random(11);
  Array<std::int64_t> counts(ranks * experts * parts);
  std::vector<std::array<index_t, 4>> rows;  // expert, part, rank, number in its block
  for (index_t r = 0, i = 0; r < ranks; ++r) {
    for (index_t e = 0; e < experts; ++e) {
      for (index_t p = 0; p < parts; ++p, ++i) {
        const auto n = static_cast<index_t>(e == 2 ? 0 : random() % 400);
        counts.host[static_cast<std::size_t>(i)] = n;
        for (index_t row = 0; row < n; ++row) rows.push_back({e, p, r, row});
      }
    }
  }
  std::vector<std::array<index_t, 4>> sorted = rows;
  std::ranges::sort(sorted);
  const auto n = static_cast<index_t>(rows.size());
  counts.push();
  Array<std::int64_t> places(n);
  kernels::find_places(device, counts.read(), experts, parts, places.vector());
  const auto x = Array<double>::random(n * hidden, 1);
  Array<double> there(n * hidden), back(n * hidden), values(n), values_back(n);
  kernels::place_rows<double>(device, x.read(n, hidden), places.read(), there.matrix(n, hidden));
  kernels::gather_rows<double>(device, 1, there.read(n, hidden), places.read(), back.matrix(n, hidden));
  const Vector<const double> some(x.data(), n);
  kernels::place_values<double>(device, some, places.read(), values.vector());
  kernels::gather_values<double>(device, values.read(), places.read(), values_back.vector());
  device.fence();
  places.pull(), there.pull(), back.pull(), values.pull(), values_back.pull();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto at = static_cast<std::size_t>(places.host[i]);
    ASSERT_LT(at, rows.size());
    ASSERT_EQ(sorted[at], rows[i]) << i;
    ASSERT_EQ(values.host[at], x.host[i]);
    for (std::size_t c = 0; c < hidden; ++c) ASSERT_EQ(there.host[at * hidden + c], x.host[i * hidden + c]);
  }
  EXPECT_EQ(back.host, x.host);
  EXPECT_TRUE(std::ranges::equal(values_back.host, std::span(x.host).first(rows.size())));
}

// Many stretches, the last one short, experts that nobody chooses: as a stable sort.
TEST(ExpertRows, AreSortedOverManyStretches) {
  Timers timers;
  Device device(timers);
  const index_t n = 5 * kernels::assignments_of_stretch + 17, experts = 11;
  Array<std::int64_t> assignments(n), rows(n, 0), source(n, -5), counts(experts);
  Array<std::int64_t> stretches(kernels::stretches_of(n) * experts, 99);
  std::mt19937 random(7);
  for (auto& assignment : assignments.host) assignment = static_cast<std::int64_t>(random() % 8);
  for (std::size_t i = 0; i < rows.host.size(); i += 7) rows.host[i] = -1;
  assignments.push(), rows.push();
  std::vector<std::int64_t> kept, expected_counts(static_cast<std::size_t>(experts), 0);
  for (std::size_t i = 0; i < rows.host.size(); ++i) {
    if (rows.host[i] < 0) continue;
    kept.push_back(static_cast<std::int64_t>(i));
    ++expected_counts[static_cast<std::size_t>(assignments.host[i])];
  }
  std::ranges::stable_sort(kept, {}, [&](std::int64_t i) { return assignments.host[static_cast<std::size_t>(i)]; });
  kernels::assign_rows(device, assignments.read(), rows.vector(), source.vector(), counts.vector(),
                       stretches.matrix(kernels::stretches_of(n), experts));
  device.fence();
  rows.pull(), source.pull(), counts.pull();
  EXPECT_EQ(counts.host, expected_counts);
  for (std::size_t r = 0; r < kept.size(); ++r) {
    ASSERT_EQ(source.host[r], kept[r]) << r;
    ASSERT_EQ(rows.host[static_cast<std::size_t>(kept[r])], static_cast<std::int64_t>(r));
  }
  EXPECT_EQ(source.host[kept.size()], -5);
}

// Ten tokens in four shards of 3, 3, 2, 2: experts of some tokens, of all, of none.
TEST(ExpertRows, AreCutWhereTheirTokensCrossShards) {
  Timers timers;
  Device device(timers);
  const index_t k = 2;
  const std::vector<std::vector<std::int64_t>> tokens_of{{2, 3, 4, 9}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {}};
  Array<std::int64_t> source(20), counts(3), cuts(3 * 5);
  std::size_t row = 0;
  for (std::size_t e = 0; e < 3; ++e) {
    counts.host[e] = static_cast<std::int64_t>(tokens_of[e].size());
    for (const std::int64_t t : tokens_of[e]) source.host[row++] = t * k + static_cast<std::int64_t>(e) % k;
  }
  source.push(), counts.push();
  kernels::cut_rows(device, k, source.read(), counts.read(), SumOrder({{10, 1}}, 4, 1, 0), cuts.matrix(3, 5));
  device.fence();
  cuts.pull();
  EXPECT_EQ(cuts.host, (std::vector<std::int64_t>{0, 1, 3, 3, 4, /**/ 0, 3, 6, 8, 10, /**/ 0, 0, 0, 0, 0}));
}

// Two sequences, each on two ranks of two shards, and one expert.
TEST(ExpertRows, CutsOfRanksAreJoined) {
  Timers timers;
  Device device(timers);
  Array<std::int64_t> of_ranks(4 * 3), cuts(2 * 5);
  of_ranks.host = {0, 1, 3, /**/ 0, 0, 2, /**/ 0, 0, 0, /**/ 0, 4, 4};
  of_ranks.push();
  kernels::join_cuts(device, of_ranks.read(), 1, 2, 1, cuts.matrix(2, 5));
  device.fence();
  cuts.pull();
  EXPECT_EQ(cuts.host, (std::vector<std::int64_t>{0, 1, 3, 3, 5, /**/ 0, 0, 0, 4, 4}));
}

// One sequence on two ranks of two shards, each in two slices, and two experts: the second slice begins in a shard.
TEST(ExpertRows, CutsOfSlicesAreJoined) {
  Timers timers;
  Device device(timers);
  Array<std::int64_t> of_ranks(4 * 2 * 3), cuts(2 * 5);
  of_ranks.host = {0, 1, 1, 0, 0, 0, /**/ 0, 2, 5, 0, 0, 4, /**/ 0, 1, 3, 0, 2, 2, /**/ 0, 0, 2, 0, 0, 0};
  of_ranks.push();
  kernels::join_cuts(device, of_ranks.read(), 2, 1, 2, cuts.matrix(2, 5));
  device.fence();
  cuts.pull();
  EXPECT_EQ(cuts.host, (std::vector<std::int64_t>{0, 3, 6, 7, 11, /**/ 0, 0, 4, 6, 6}));
}

}  // namespace
}  // namespace nanotron::test
