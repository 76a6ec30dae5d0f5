// ranks: 1
// Routing against plain loops, its gradient against finite differences, and what happens to rows on their way.
#include <algorithm>
#include <limits>

#include "nanotron/kernels/mlp/gated.hpp"
#include "nanotron/kernels/moe/expert_rows.hpp"
#include "nanotron/kernels/moe/routing.hpp"
#include "support/reference/routing.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

using kernels::Routing;
using kernels::TopKWeights;
namespace reference = kernels::reference;

template <class T>
class RoutingKernels : public KernelTest<T> {};
using MasterTypes = ::testing::Types<double, float>;
TYPED_TEST_SUITE(RoutingKernels, MasterTypes);

template <class T>
std::vector<double> widened(const Array<T>& a, index_t begin, index_t n) {
  std::vector<double> v;
  for (index_t i = begin; i < begin + n; ++i) v.push_back(static_cast<double>(a.host[static_cast<std::size_t>(i)]));
  return v;
}

TYPED_TEST(RoutingKernels, FollowTheReference) {
  using M = TypeParam;
  const index_t tokens = 37, columns = 13, k = 3;
  using enum deck::RouterScore;
  const Routing all[] = {{8, k, TopKWeights::scores},
                         {8, k, TopKWeights::renormalised},
                         {3, k, TopKWeights::scores},
                         {12, k, TopKWeights::scores, softmax, 4, 2, 16.0},
                         {12, k, TopKWeights::renormalised, sigmoid, 1, 1, 2.5},
                         {12, k, TopKWeights::scores, sigmoid, 3, 2},
                         {12, k, TopKWeights::renormalised, sigmoid, 12, 5}};
  for (const Routing& routing : all) {
    const bool is_sigmoid = routing.score == sigmoid;
    const auto bias = Array<M>::random(is_sigmoid ? routing.experts : 0, 6, 0.3);
    auto logits = Array<M>::random(tokens * columns, 5, 2.0);
    for (index_t e = 0; e < 3; ++e) logits.host[static_cast<std::size_t>(4 * columns + e)] = M(1.25);  // a tie
    logits.push();
    Array<M> p(tokens * routing.experts), w(tokens * k), z(tokens), score_sums(is_sigmoid ? tokens : 0);
    Array<std::int64_t> assignments(tokens * k);
    kernels::route_forward<M>(this->device_, routing, {}, MatrixRef<const M>(logits.data(), tokens, columns),
                              p.matrix(tokens, routing.experts), assignments.vector(), w.vector(), z.vector(),
                              bias.read(), score_sums.vector());
    this->device_.fence();
    p.pull(), w.pull(), z.pull(), assignments.pull();
    std::vector<double> p2, w2, z2;
    std::vector<std::int64_t> c2;
    for (index_t t = 0; t < tokens; ++t) {
      const auto r = reference::route(widened(logits, t * columns, routing.experts), routing,
                                      widened(bias, 0, is_sigmoid ? routing.experts : 0));
      p2.insert(p2.end(), r.probabilities.begin(), r.probabilities.end());
      w2.insert(w2.end(), r.weights.begin(), r.weights.end());
      z2.push_back(r.z);
      c2.insert(c2.end(), r.assignments.begin(), r.assignments.end());
    }
    EXPECT_EQ(assignments.host, c2);
    // exp to 2 units, a sum of 12, divisions.
    const double tolerance = 32 * unit_roundoff<M>() * routing.factor;
    expect_close(p.host, p2, tolerance);
    expect_close(w.host, w2, tolerance);
    expect_close(z.host, z2, tolerance);
  }
}

// loss = sum of r w + balance n p / (k S T) + zeta z^2 / T with the assignments kept: they are steps.
TEST(RoutingGradient, MeetsFiniteDifferences) {
  Timers timers;
  Device device(timers);
  const index_t sequences = 2, length = 3, tokens = 6, experts = 6, k = 2, columns = 7;
  using enum deck::RouterScore;
  for (const Routing& routing :
       {Routing{experts, k, TopKWeights::scores}, Routing{experts, k, TopKWeights::renormalised},
        Routing{experts, k, TopKWeights::renormalised, softmax, 3, 2, 1.7},
        Routing{experts, k, TopKWeights::scores, sigmoid, 1, 1, 1.3},
        Routing{experts, k, TopKWeights::renormalised, sigmoid, 3, 2, 2.5}}) {
    const kernels::RouterScales scales{.balance = 12.0, .zeta = routing.score == sigmoid ? 0.0 : 1.4, .tokens = 7.0};
    const auto logits = Array<double>::random(tokens * columns, 3, 1.5);
    const auto dw = Array<double>::random(tokens * k, 4);
    Array<double> p(tokens * experts), w(tokens * k), z(tokens), dl(tokens * columns, 7.0), score_sums(tokens);
    Array<std::int64_t> assignments(tokens * k), counts(sequences * experts);
    const Matrix<std::int64_t> n(counts.data(), sequences, experts);
    kernels::route_forward<double>(device, routing, {}, MatrixRef<const double>(logits.data(), tokens, columns),
                                   p.matrix(tokens, experts), assignments.vector(), w.vector(), z.vector(), {},
                                   score_sums.vector());
    kernels::count_assignments(device, k, assignments.read(), n);
    kernels::route_backward<double>(device, routing, {.length = length}, p.read(tokens, experts), assignments.read(),
                                    w.read(), z.read(), dw.read(), n, scales,
                                    MatrixRef<double>(dl.data(), tokens, columns), score_sums.read());
    device.fence();
    counts.pull(), dl.pull();
    const auto loss = [&](const std::vector<double>& l) {
      double sum = 0.0;
      for (index_t t = 0; t < tokens; ++t) {
        const auto first = l.begin() + t * columns;
        const auto r = reference::route({first, first + experts}, routing);
        for (index_t j = 0; j < k; ++j) {
          sum += dw.host[static_cast<std::size_t>(t * k + j)] * r.weights[static_cast<std::size_t>(j)];
        }
        for (index_t e = 0; e < experts; ++e) {
          sum += scales.balance / (k * length * scales.tokens) *
                 static_cast<double>(counts.host[static_cast<std::size_t>(t / length * experts + e)]) *
                 r.probabilities[static_cast<std::size_t>(e)];
        }
        sum += scales.zeta / scales.tokens * r.z * r.z;
      }
      return sum;
    };
    const std::vector<double> expected = finite_difference(logits.host, loss);
    for (index_t t = 0; t < tokens; ++t) {
      for (index_t e = 0; e < experts; ++e) {
        const auto i = static_cast<std::size_t>(t * columns + e);
        EXPECT_NEAR(dl.host[i], expected[i], 1e-8) << t << " " << e;
      }
      EXPECT_EQ(dl.host[static_cast<std::size_t>(t * columns + experts)], 7.0) << "a column that is not the router's";
    }
  }
}

TEST(ChoiceBias, MovesTowardsTheMeanLoad) {
  Timers timers;
  Device device(timers);
  Array<double> loads(5), bias(5, 1.0);
  loads.host = {4.0, 1.0, 5.0, 0.0, 2.5};  // mean 2.5
  loads.push();
  kernels::balance_bias<double>(device, loads.read(), 0.25, bias.vector());
  device.fence();
  bias.pull();
  EXPECT_EQ(bias.host, (std::vector<double>{0.75, 1.25, 0.75, 1.25, 1.0}));
}

// Nothing to choose by: each expert gets as many.
TEST(Rows, OfTokensThatAreNotFiniteAreDealtOut) {
  Timers timers;
  Device device(timers);
  const index_t tokens = 9, experts = 6, k = 2;
  Array<double> logits(tokens * experts, std::numeric_limits<double>::quiet_NaN()), p(tokens * experts), w(tokens * k),
      z(tokens);
  logits.host[0] = 1.0;
  logits.push();
  Array<std::int64_t> assignments(tokens * k);
  kernels::route_forward<double>(device, {experts, k, TopKWeights::scores}, {},
                                 MatrixRef<const double>(logits.data(), tokens, experts), p.matrix(tokens, experts),
                                 assignments.vector(), w.vector(), z.vector());
  device.fence();
  assignments.pull();
  std::vector<int> met(static_cast<std::size_t>(experts), 0);
  for (const std::int64_t assignment : assignments.host) ++met[static_cast<std::size_t>(assignment)];
  EXPECT_EQ(met, std::vector<int>(static_cast<std::size_t>(experts), 3));
}

// Two sequences of five tokens, of which this rank has positions 1, 2 and 4; the other's assignments lie in front. Of 2
// experts one takes ceil(0.8 * 5 / 2) tokens.
TEST(Rows, OverflowIsCountedAlongTheSequence) {
  Timers timers;
  Device device(timers);
  const index_t k = 1, length = 3;
  Array<std::int64_t> base(5), step(5), own(5), rows(2 * length * k), all(10);
  base.host = {0, 4, 5, 1, 6}, step.host = {2, 3, 3, 2, 3}, own.host = {-1, 0, 1, -1, 2};
  all.host = {0, 0, 1, 1, /* here */ 0, 0, 0, 1, 0, 1};
  rows.host = {0, 0, -2, 0, -2, -2};  // rows of other ranks, of which the dropped are known too
  for (auto* values : {&base, &step, &own, &rows, &all}) values->push();
  kernels::mark_overflow(device, {2, k, TopKWeights::scores}, {base.read(), step.read(), own.read(), 2, length},
                         {.length = 5}, 0.8, all.read(), rows.vector());
  device.fence();
  rows.pull();
  // The first sequence: 0 | 0 0 | 0 | 0, the second: 1 | 1 0 | 1 | 1.
  EXPECT_EQ(rows.host, (std::vector<std::int64_t>{0, -1, -1, 0, -2, -1}));
}

// Sequences of four positions with 3, 0 and 1 tokens, of which this rank has positions 0, 2 and 3: as if the tokens
// were alone, and whatever the logits of the other positions are.
TEST(Rows, EmptyPositionsAreNobodys) {
  Timers timers;
  Device device(timers);
  const index_t sequences = 3, rows_here = 9, experts = 2, k = 1;
  const std::vector<std::size_t> filled{0, 1, 6};
  Array<std::int32_t> tokens(sequences);
  tokens.host = {3, 0, 1};
  tokens.push();
  const FilledPositions positions{.shard = {{0, 1}, {2, 4}}, .length = 4, .tokens = tokens.data()};
  auto logits = Array<double>::random(rows_here * experts, 3, 2.0);
  for (std::size_t t = 0; t < 9; ++t) {
    if (std::ranges::find(filled, t) == filled.end()) logits.host[2 * t] = std::numeric_limits<double>::infinity();
  }
  logits.host[0] = logits.host[2] = logits.host[12] = 5.0;  // all tokens choose expert 0
  logits.push();
  Array<double> p(rows_here * experts, 9.0), w(rows_here, 9.0), z(rows_here, 9.0), dl(rows_here * experts, 9.0);
  Array<std::int64_t> assignments(rows_here, 9), rows(rows_here, 9), source(rows_here, 9), counts(experts),
      stretches(experts), of_sequence(sequences * experts);
  const Matrix<std::int64_t> n(of_sequence.data(), sequences, experts);
  const auto dw = Array<double>::random(rows_here, 4);
  Array<double> sums(2 * experts + 2, 0.0);
  const Routing routing{experts, k, TopKWeights::scores};
  kernels::route_forward<double>(device, routing, positions, MatrixRef<const double>(logits.data(), rows_here, experts),
                                 p.matrix(rows_here, experts), assignments.vector(), w.vector(), z.vector());
  kernels::mark_routed(device, assignments.read(), {0, rows_here}, rows.vector(), source.vector());
  kernels::assign_rows(device, assignments.read(), rows.vector(), source.vector(), counts.vector(),
                       stretches.matrix(1, experts));
  kernels::count_assignments(device, k, assignments.read(), n);
  kernels::route_backward<double>(device, routing, positions, p.read(rows_here, experts), assignments.read(), w.read(),
                                  z.read(), dw.read(), n, {.balance = 1.0, .zeta = 1.0, .tokens = 4.0},
                                  MatrixRef<double>(dl.data(), rows_here, experts));
  kernels::add_router_sums<double>(device, positions, p.read(rows_here, experts), assignments.read(), rows.read(),
                                   z.read(), n, sums.vector());
  device.fence();
  for (auto* values : {&p, &z, &dl, &sums}) values->pull();
  for (auto* values : {&assignments, &rows, &source, &counts, &of_sequence}) values->pull();
  EXPECT_EQ(assignments.host, (std::vector<std::int64_t>{0, 0, -1, -1, -1, -1, 0, -1, -1}));
  EXPECT_EQ(rows.host, (std::vector<std::int64_t>{0, 1, -1, -1, -1, -1, 2, -1, -1}));
  EXPECT_EQ(source.host, (std::vector<std::int64_t>{0, 1, 6, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(counts.host, (std::vector<std::int64_t>{3, 0}));
  EXPECT_EQ(of_sequence.host, (std::vector<std::int64_t>{2, 0, 0, 0, 1, 0}));
  for (std::size_t t = 0; t < 9; ++t) {
    const bool has_token = std::ranges::find(filled, t) != filled.end();
    EXPECT_EQ(p.host[2 * t] != 0.0, has_token) << t;
    EXPECT_EQ(dl.host[2 * t] != 0.0, has_token) << t;
    EXPECT_EQ(z.host[t] != 0.0, has_token) << t;
  }
  EXPECT_DOUBLE_EQ(sums.host[0], 2 * (p.host[0] + p.host[2]) * 4 / 3 + p.host[12] * 4);
  EXPECT_EQ(sums.host[2], 3.0);
  EXPECT_DOUBLE_EQ(sums.host[4], z.host[0] * z.host[0] + z.host[1] * z.host[1] + z.host[6] * z.host[6]);
  EXPECT_EQ(sums.host[5], 0.0) << "nothing is dropped";
}

// Capacities are of the tokens: of 5 positions 2 are filled, of which an expert takes ceil(0.8 * 2 / 2).
TEST(Rows, OverflowIsThatOfTheTokens) {
  Timers timers;
  Device device(timers);
  Array<std::int64_t> base(5), step(5), own(5), rows(5, 0), assignments(5, kernels::no_expert);
  base.host = own.host = {0, 1, 2, 3, 4};
  assignments.host[0] = assignments.host[1] = 1;
  Array<std::int32_t> tokens(1, 2);
  base.push(), step.push(), own.push(), assignments.push(), tokens.push();
  kernels::mark_overflow(device, {2, 1, TopKWeights::scores}, {base.read(), step.read(), own.read(), 1, 5},
                         {.shard = {{0, 5}, {5, 5}}, .length = 5, .tokens = tokens.data()}, 0.8, assignments.read(),
                         rows.vector());
  device.fence();
  rows.pull();
  EXPECT_EQ(rows.host, (std::vector<std::int64_t>{0, -1, 0, 0, 0}));
}

template <class T>
class WeightedSwiglu : public KernelTest<T> {};
TYPED_TEST_SUITE(WeightedSwiglu, ScalarTypes);

TYPED_TEST(WeightedSwiglu, FollowsTheReferenceAndFiniteDifferences) {
  using T = TypeParam;
  using M = master_t<T>;
  const index_t rows = 5, width = 33;
  auto gate_up = Array<T>::random(rows * 2 * width, 1, 2.0);
  const auto weights = Array<M>::random(rows, 2);
  const auto dh = Array<T>::random(rows * width, 3);
  Array<T> h(rows * width);
  Array<M> dweights(rows);
  const auto input = gate_up;
  std::vector<double> h2, d2, dw2;
  for (index_t r = 0; r < rows; ++r) {
    const std::vector<double> x = widened(input, r * 2 * width, 2 * width), g = widened(dh, r * width, width);
    const double w = static_cast<double>(weights.host[static_cast<std::size_t>(r)]);
    const std::vector<double> row = reference::weighted_swiglu(x, w);
    h2.insert(h2.end(), row.begin(), row.end());
    const auto gradient =
        finite_difference(x, [&](const std::vector<double>& at) { return dot(reference::weighted_swiglu(at, w), g); });
    d2.insert(d2.end(), gradient.begin(), gradient.end());
    dw2.push_back(dot(reference::weighted_swiglu(x, 1.0), g));
  }
  kernels::weighted_gated_forward<T>(this->device_, kernels::Swiglu(), gate_up.read(rows, 2 * width), weights.read(),
                                     h.matrix(rows, width));
  kernels::weighted_gated_backward<T>(this->device_, kernels::Swiglu(), gate_up.matrix(rows, 2 * width), weights.read(),
                                      dh.read(rows, width), dweights.vector());
  this->device_.fence();
  h.pull(), gate_up.pull(), dweights.pull();
  const double tolerance = 32 * unit_roundoff<M>() + unit_roundoff<T>();
  expect_close(h.host, h2, tolerance);
  expect_close(gate_up.host, d2, tolerance + 1e-8);  // of the difference quotient
  expect_close(dweights.host, dw2, static_cast<double>(width) * 4 * unit_roundoff<M>(), 10.0);
}

// Columns of gate, up and dh that two ranks hold: their sums of a weight's gradient are nodes of the tree.
TYPED_TEST(WeightedSwiglu, PartsAddUpToTheWhole) {
  using T = TypeParam;
  using M = master_t<T>;
  const index_t rows = 3, width = 37;
  const auto gate_up = Array<T>::random(rows * 2 * width, 1, 2.0), dh = Array<T>::random(rows * width, 2);
  const auto weights = Array<M>::random(rows, 3);
  const auto sums = [&](int parts, int index) {
    const Range here = shard_range(width, 4, parts, index);
    Array<T> part(rows * 2 * here.size()), gradient(rows * here.size());
    for (index_t r = 0; r < rows; ++r) {
      std::copy_n(gate_up.host.begin() + r * 2 * width + here.begin, here.size(),
                  part.host.begin() + r * 2 * here.size());
      std::copy_n(gate_up.host.begin() + (2 * r + 1) * width + here.begin, here.size(),
                  part.host.begin() + (2 * r + 1) * here.size());
      std::copy_n(dh.host.begin() + r * width + here.begin, here.size(), gradient.host.begin() + r * here.size());
    }
    part.push(), gradient.push();
    Array<M> dweights(rows);
    kernels::weighted_gated_backward<T>(this->device_, kernels::Swiglu(), part.matrix(rows, 2 * here.size()),
                                        weights.read(), gradient.read(rows, here.size()), dweights.vector(),
                                        SumOrder({{width, 1}}, 4, parts, index));
    this->device_.fence();
    dweights.pull();
    return dweights.host;
  };
  const std::vector<M> whole = sums(1, 0), left = sums(2, 0), right = sums(2, 1);
  for (std::size_t r = 0; r < whole.size(); ++r) EXPECT_EQ(left[r] + right[r], whole[r]);
}

}  // namespace
}  // namespace nanotron::test
