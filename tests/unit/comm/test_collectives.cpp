// ranks: 1 2 3 4 8
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nanotron/base/fp16.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/transport/channel.hpp"
#include "support/world.hpp"

namespace nanotron::comm {
namespace {

// What rank r contributes at element i: small integers, exact in every type.
template <class T>
T value_of(int rank, std::size_t i) {
  const auto mixed = (i * 2654435761u + static_cast<std::size_t>(rank) * 40503u) >> 7;
  return static_cast<T>(static_cast<float>(mixed % 7));
}

template <class T>
T oracle(int ranks, std::size_t i, ReduceOp op) {
  double result = static_cast<double>(value_of<T>(0, i));
  for (int r = 1; r < ranks; ++r) {
    const double next = static_cast<double>(value_of<T>(r, i));
    result = op == ReduceOp::sum   ? result + next
             : op == ReduceOp::max ? std::max(result, next)
                                   : std::min(result, next);
  }
  return static_cast<T>(static_cast<float>(result));
}

template <class T>
std::vector<T> contribution(int rank, std::size_t n, std::size_t from = 0) {
  std::vector<T> data(n);
  for (std::size_t i = 0; i < n; ++i) data[i] = value_of<T>(rank, from + i);
  return data;
}

// The number of elements that differ, as one number: a million EXPECTs are slow.
template <class T, class F>
std::size_t wrong(const std::vector<T>& data, F&& expected) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < data.size(); ++i) count += !(data[i] == expected(i));
  return count;
}

const std::vector<std::size_t> sizes{0, 1, 2, 3, 17, 1000, 4097, 65537, 150001};

template <class T>
void check_all(Group& group, std::size_t least, std::size_t most) {
  const int me = group.rank(), ranks = group.size();
  const auto p = static_cast<std::size_t>(ranks);
  for (const std::size_t n : sizes) {
    if (n < least || n > most) continue;
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
      std::vector<T> data = contribution<T>(me, n);
      all_reduce(group, data.data(), n, op);
      EXPECT_EQ(wrong(data, [&](std::size_t i) { return oracle<T>(ranks, i, op); }), 0u) << n;
    }
    std::vector<T> all(n * p), mine = contribution<T>(me, n);
    all_gather(group, mine.data(), n, all.data());
    const auto gathered = [&](std::size_t i) { return value_of<T>(static_cast<int>(i / n), i % n); };
    EXPECT_EQ(wrong(all, gathered), 0u) << "all_gather " << n;
    std::fill(all.begin(), all.end(), T(0.0f));
    std::copy(mine.begin(), mine.end(), all.begin() + static_cast<std::ptrdiff_t>(me * n));
    all_gather(group, all.data() + me * n, n, all.data());
    EXPECT_EQ(wrong(all, gathered), 0u) << "all_gather in place " << n;

    std::vector<T> send = contribution<T>(me, n * p), part(n);
    const auto scattered = [&](std::size_t i) { return oracle<T>(ranks, me * n + i, ReduceOp::sum); };
    reduce_scatter(group, send.data(), part.data(), n, ReduceOp::sum);
    EXPECT_EQ(wrong(part, scattered), 0u) << "reduce_scatter " << n;
    send = contribution<T>(me, n * p);
    reduce_scatter(group, send.data(), send.data() + me * n, n, ReduceOp::sum);
    std::copy_n(send.begin() + static_cast<std::ptrdiff_t>(me * n), n, part.begin());
    EXPECT_EQ(wrong(part, scattered), 0u) << "reduce_scatter in place " << n;

    for (const int root : {0, ranks - 1}) {
      std::vector<T> data = contribution<T>(me, n);
      broadcast(group, data.data(), n, root);
      EXPECT_EQ(wrong(data, [&](std::size_t i) { return value_of<T>(root, i); }), 0u) << "broadcast " << n;
    }
  }
}

// Each transport of host memory: as chosen, with sums in a tree, plain MPI, MPI in calls of at most 1000 elements.
class Collectives : public ::testing::TestWithParam<std::string> {
 protected:
  Group make() {
    Communicator own = Communicator::duplicate(test::world());
    if (GetParam() == "chosen" || own.size() == 1) return Group(std::move(own), Transport::mpi);
    if (GetParam() == "tree") return Group(std::move(own), Transport::mpi, Sums::tree);
    const std::size_t most = GetParam() == "pieces" ? 1000 : std::size_t{1} << 30;
    return Group(std::move(own), make_mpi_channel(base_, most));
  }
  template <class T>
  void check() {
    Group group = make();
    // Without the long ones where pieces are tried: busy waiting on few cores makes each call slow.
    const bool pieces = GetParam() == "pieces";
    check_all<T>(group, pieces ? 1000 : 0, pieces ? 5000 : 1000000);
  }
  Communicator base_ = Communicator::duplicate(test::world());
};

TEST_P(Collectives, DoubleFollowsTheOracle) { check<double>(); }
TEST_P(Collectives, FloatFollowsTheOracle) { check<float>(); }
TEST_P(Collectives, Bf16FollowsTheOracle) { check<bf16>(); }
TEST_P(Collectives, Fp16FollowsTheOracle) { check<fp16>(); }
TEST_P(Collectives, SignedFollowsTheOracle) { check<std::int64_t>(); }
TEST_P(Collectives, UnsignedFollowsTheOracle) { check<std::uint64_t>(); }

TEST_P(Collectives, StartedOperationsRunBehindOthersAndFinishInOrder) {
  Group group = make();
  const int ranks = group.size();
  constexpr std::size_t n = 100003;
  constexpr int buckets = 6;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::vector<float>> data;
    std::vector<Request> requests;
    for (int b = 0; b < buckets; ++b) {
      data.push_back(contribution<float>(group.rank(), n, static_cast<std::size_t>(b)));
      requests.push_back(start_all_reduce(group, data.back().data(), n, ReduceOp::sum));
      requests.front().test();
      // A blocking operation of the same group in between.
      std::vector<double> other = contribution<double>(group.rank(), 33);
      all_reduce(group, other.data(), other.size(), ReduceOp::sum);
      EXPECT_EQ(wrong(other, [&](std::size_t i) { return oracle<double>(ranks, i, ReduceOp::sum); }), 0u);
    }
    for (int b = 0; b < buckets; ++b) {
      if (b % 2) {
        while (!requests[b].test()) std::this_thread::yield();
      } else {
        requests[b].wait();
      }
      requests[b].wait();  // of a complete request: nothing
      EXPECT_TRUE(requests[b].test());
      EXPECT_EQ(wrong(data[b], [&](std::size_t i) { return oracle<float>(ranks, i + b, ReduceOp::sum); }), 0u);
    }
  }
}

TEST_P(Collectives, StartedGathersAndScattersGiveWhatBlockingOnesGive) {
  Group group = make();
  const auto ranks = static_cast<std::size_t>(group.size()), me = static_cast<std::size_t>(group.rank());
  constexpr std::size_t n = 20011;
  for (const bool in_place : {false, true}) {
    std::vector<float> whole = contribution<float>(group.rank(), n * ranks), summed(n);
    float* const result = in_place ? whole.data() + me * n : summed.data();
    Request scatter = start_reduce_scatter(group, whole.data(), result, n, ReduceOp::sum);
    std::vector<double> sent = contribution<double>(group.rank(), n), gathered(n * ranks);
    if (in_place) std::copy(sent.begin(), sent.end(), gathered.begin() + static_cast<std::ptrdiff_t>(me * n));
    Request gather = start_all_gather(group, in_place ? gathered.data() + me * n : sent.data(), n, gathered.data());
    while (!scatter.test()) std::this_thread::yield();
    gather.wait();
    EXPECT_EQ(wrong(std::vector<float>(result, result + n),
                    [&](std::size_t i) { return oracle<float>(group.size(), i + me * n, ReduceOp::sum); }),
              0u);
    for (std::size_t r = 0; r < ranks; ++r) {
      const std::vector<double> theirs = contribution<double>(static_cast<int>(r), n);
      EXPECT_TRUE(std::equal(theirs.begin(), theirs.end(), gathered.begin() + static_cast<std::ptrdiff_t>(r * n)));
    }
  }
}

// Two at once, with a sum between them.
TEST_P(Collectives, StartedExchangesGiveEachRankItsParts) {
  Group group = make();
  const auto ranks = static_cast<std::size_t>(group.size()), me = static_cast<std::size_t>(group.rank());
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{4099}, std::size_t{50021}}) {
    const std::vector<bf16> sent = contribution<bf16>(group.rank(), n * ranks);
    const std::vector<float> also_sent = contribution<float>(group.rank(), n * ranks, 5);
    std::vector<bf16> received(n * ranks);
    std::vector<float> also_received(n * ranks), added = contribution<float>(group.rank(), n);
    Request first = start_all_to_all(group, sent.data(), n, received.data());
    Request sum = start_all_reduce(group, added.data(), n, ReduceOp::sum);
    Request second = start_all_to_all(group, also_sent.data(), n, also_received.data());
    while (!first.test()) std::this_thread::yield();
    sum.wait();
    second.wait();
    std::size_t bad = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      for (std::size_t i = 0; i < n; ++i) {
        bad += !(received[r * n + i] == value_of<bf16>(static_cast<int>(r), me * n + i));
        bad += also_received[r * n + i] != value_of<float>(static_cast<int>(r), me * n + i + 5);
      }
    }
    EXPECT_EQ(bad, 0u) << n;
    EXPECT_EQ(wrong(added, [&](std::size_t i) { return oracle<float>(group.size(), i, ReduceOp::sum); }), 0u);
  }
}

TEST_P(Collectives, ADroppedRequestIsFinished) {
  Group group = make();
  std::vector<float> data = contribution<float>(group.rank(), 70001);
  { const Request dropped = start_all_reduce(group, data.data(), data.size(), ReduceOp::max); }
  EXPECT_EQ(wrong(data, [&](std::size_t i) { return oracle<float>(group.size(), i, ReduceOp::max); }), 0u);
}

TEST_P(Collectives, RunningSumsOfTwoGroupsDoNotMeet) {
  Group outer = make();
  Group inner(outer.communicator().split(outer.rank() / 2, outer.rank()), Transport::mpi);
  std::vector<float> big = contribution<float>(outer.rank(), 200001);
  Request request = start_all_reduce(outer, big.data(), big.size(), ReduceOp::sum);
  for (int i = 0; i < 20; ++i) {
    std::vector<double> one{1.0};
    all_reduce(inner, one.data(), 1, ReduceOp::sum);
    EXPECT_EQ(one[0], inner.size());
    request.test();
  }
  request.wait();
  EXPECT_EQ(wrong(big, [&](std::size_t i) { return oracle<float>(outer.size(), i, ReduceOp::sum); }), 0u);
}

TEST_P(Collectives, TrafficCountsCallsAndBytes) {
  Group group = make();
  std::vector<float> data(1000, 1.0f), all(1000 * static_cast<std::size_t>(group.size()));
  all_reduce(group, data.data(), 1000, ReduceOp::sum);
  start_all_reduce(group, data.data(), 500, ReduceOp::max).wait();
  all_gather(group, data.data(), 1000, all.data());
  reduce_scatter(group, all.data(), data.data(), 1000, ReduceOp::sum);
  broadcast(group, data.data(), 10, 0);
  barrier(group);
  EXPECT_EQ(sum(group, 1.0), group.size());
  const Traffic traffic = group.traffic();
  if (group.size() == 1) {
    EXPECT_EQ(traffic.calls + traffic.bytes, 0u);
  } else {
    EXPECT_EQ(traffic.calls, 7u);
    EXPECT_EQ(traffic.bytes, 4000u + 2000 + 4000 + 4000u * static_cast<unsigned>(group.size()) + 40 + 8);
    EXPECT_GT(traffic.seconds, 0.0);
  }
}

// Rank s sends n (s + 1) + 2 r elements to rank r, and nothing from an odd rank to itself.
TEST_P(Collectives, AllToAllOfUnevenParts) {
  Group group = make();
  const int me = group.rank(), ranks = group.size();
  for (const std::size_t n : {std::size_t{0}, std::size_t{5}, std::size_t{3001}}) {
    const auto count = [&](int s, int r) {
      return s == r && s % 2 == 1 ? 0 : n * static_cast<std::size_t>(s + 1) + 2 * static_cast<std::size_t>(r);
    };
    std::vector<std::size_t> send_counts, recv_counts;
    std::vector<float> send, expected;
    for (int r = 0; r < ranks; ++r) {
      send_counts.push_back(count(me, r));
      recv_counts.push_back(count(r, me));
      for (std::size_t i = 0; i < count(me, r); ++i) send.push_back(static_cast<float>(me * 100 + r) + 0.001f * i);
      for (std::size_t i = 0; i < count(r, me); ++i) expected.push_back(static_cast<float>(r * 100 + me) + 0.001f * i);
    }
    std::vector<float> recv(expected.size(), -1.0f);
    const std::uint64_t before = group.traffic().bytes;
    all_to_all<float>(group, send.data(), send_counts, recv.data(), recv_counts);
    EXPECT_EQ(recv, expected) << n;
    EXPECT_EQ(group.traffic().bytes - before, ranks > 1 ? 4 * send.size() : 0u);
    // Two in flight, with a sum between them; the second one is waited for first.
    std::vector<float> first(expected.size(), -1.0f), second(expected.size(), -1.0f), sums(1001, 1.0f);
    Request one = start_all_to_all<float>(group, send.data(), send_counts, first.data(), recv_counts);
    Request sum = start_all_reduce(group, sums.data(), sums.size(), ReduceOp::sum);
    Request two =
        start_all_to_all<float>(group, send.data(), send_counts, second.data(), recv_counts, mark(group, Stream()));
    two.wait();
    sum.wait();
    while (!one.test()) std::this_thread::yield();
    EXPECT_EQ(first, expected) << n;
    EXPECT_EQ(second, expected) << n;
    EXPECT_EQ(sums, std::vector<float>(1001, static_cast<float>(ranks))) << n;
  }
}

TEST_P(Collectives, ScalarsOfTheHost) {
  Group group = make();
  const int ranks = group.size();
  EXPECT_EQ(sum(group, 0.5), 0.5 * ranks);
  EXPECT_EQ(max(group, static_cast<double>(group.rank())), ranks - 1.0);
  EXPECT_EQ(min(group, static_cast<double>(group.rank())), 0.0);
  EXPECT_EQ(sum(group, std::int64_t{1} << 40), (std::int64_t{1} << 40) * ranks);
  EXPECT_EQ(max(group, static_cast<std::int64_t>(-group.rank())), 0);
  EXPECT_EQ(min(group, static_cast<std::int64_t>(-group.rank())), 1 - ranks);
}

INSTANTIATE_TEST_SUITE_P(Host, Collectives, ::testing::Values("chosen", "tree", "mpi", "pieces"),
                         [](const auto& info) { return info.param; });

// The sum of a group on one node: rank order, whatever n and the place of an element in it.
TEST(SharedMemory, SumsRunInRankOrder) {
  Group group(Communicator::duplicate(test::world()), Transport::mpi);
  if (group.path() != "shared memory") return;
  for (const std::size_t n : {std::size_t{5}, std::size_t{150001}}) {
    const auto mine = [&](int r, std::size_t i) {
      return std::sin(static_cast<float>(i * 31 + static_cast<std::size_t>(r) * 7)) * std::exp2(float(r * 3));
    };
    std::vector<float> data(n), expected(n);
    std::vector<bf16> rounded(n);
    std::size_t bf16_wrong = 0;
    for (std::size_t i = 0; i < n; ++i) {
      data[i] = mine(group.rank(), i);
      rounded[i] = bf16(data[i]);
      expected[i] = mine(0, i);
      for (int r = 1; r < group.size(); ++r) expected[i] += mine(r, i);
    }
    all_reduce(group, data.data(), n, ReduceOp::sum);
    EXPECT_EQ(wrong(data, [&](std::size_t i) { return expected[i]; }), 0u);
    all_reduce(group, rounded.data(), n, ReduceOp::sum);
    for (std::size_t i = 0; i < n; ++i) {
      float sum = bf16(mine(0, i));
      for (int r = 1; r < group.size(); ++r) sum += static_cast<float>(bf16(mine(r, i)));
      bf16_wrong += rounded[i].bits != bf16(sum).bits;
    }
    EXPECT_EQ(bf16_wrong, 0u);
  }
}

// ((r0 + r1) + (r2 + r3)) + ..., whatever n and the place of an element in it; the same from a reduce-scatter.
TEST(Tree, AddsNeighboursInPairs) {
  Group group(Communicator::duplicate(test::world()), Transport::mpi, Sums::tree);
  const auto size = static_cast<std::size_t>(group.size());
  const auto mine = [](std::size_t r, std::size_t i) {
    return std::sin(static_cast<float>(i * 31 + r * 7)) * std::exp2(static_cast<float>(r * 3));
  };
  for (const std::size_t each : {std::size_t{1}, std::size_t{5}, std::size_t{150001}}) {
    const std::size_t n = each * size;
    std::vector<float> data(n), expected(n), piece(each);
    for (std::size_t i = 0; i < n; ++i) {
      data[i] = mine(static_cast<std::size_t>(group.rank()), i);
      std::vector<float> level(size);
      for (std::size_t r = 0; r < size; ++r) level[r] = mine(r, i);
      while (level.size() > 1) {
        std::vector<float> above;
        for (std::size_t r = 0; r < level.size(); r += 2)
          above.push_back(r + 1 < level.size() ? level[r] + level[r + 1] : level[r]);
        level = above;
      }
      expected[i] = level[0];
    }
    std::vector<float> sent = data;
    reduce_scatter(group, sent.data(), piece.data(), each, ReduceOp::sum);
    const std::size_t first = static_cast<std::size_t>(group.rank()) * each;
    EXPECT_EQ(wrong(piece, [&](std::size_t i) { return expected[first + i]; }), 0u);
    all_reduce(group, data.data(), n, ReduceOp::sum);
    EXPECT_EQ(wrong(data, [&](std::size_t i) { return expected[i]; }), 0u);
  }
}

}  // namespace
}  // namespace nanotron::comm
