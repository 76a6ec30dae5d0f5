// ranks: 1
#include "nanotron/kernels/mlp/xielu.hpp"
#include "support/reference/xielu.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

template <class T>
class Xielu : public KernelTest<T> {};
TYPED_TEST_SUITE(Xielu, ScalarTypes);

TYPED_TEST(Xielu, FollowsTheReference) {
  using T = TypeParam;
  using M = master_t<T>;
  for (const auto& [rows, columns] : {std::pair<index_t, index_t>{7, 1409}, {600, 24}, {1, 1}}) {
    const Array<M> a_p(1, 0.3), a_n(1, -1.2);
    const kernels::ActivationScalars<M> a{a_p.read(), a_n.read()};
    auto x = Array<T>::random(rows * columns, 1, 2.0);
    if (rows * columns > 3) x.host[0] = of<T>(0.0), x.host[1] = of<T>(-5e-7), x.host[2] = of<T>(-0.4999);
    x.push();
    const auto dh = Array<T>::random(rows * columns, 2);
    Array<T> h(rows * columns);
    Array<M> da_p(1, 0.25), da_n(1, -0.5), work(kernels::xielu_workspace_size(built_for, rows, columns));
    kernels::xielu_forward<T>(this->device_, a, x.read(rows, columns), h.matrix(rows, columns));
    const auto input = x.host;
    kernels::xielu_backward<T>(this->device_, a, x.matrix(rows, columns), dh.read(rows, columns), da_p.vector(),
                               da_n.vector(), work.vector());
    this->device_.fence();
    h.pull(), x.pull(), da_p.pull(), da_n.pull();
    std::vector<double> h2(input.size()), d2(input.size());
    double p2 = 0.25, n2 = -0.5, size = 1.0;
    const auto p = static_cast<double>(a_p.host[0]), n = static_cast<double>(a_n.host[0]);
    for (std::size_t i = 0; i < input.size(); ++i) {
      const auto value = static_cast<double>(input[i]), g = static_cast<double>(dh.host[i]);
      const auto slopes = kernels::reference::xielu_slopes(p, n, value);
      h2[i] = kernels::reference::xielu(p, n, value);
      d2[i] = g * slopes.x;
      p2 += g * slopes.a_p, n2 += g * slopes.a_n;
      size += std::pow(g * slopes.a_p, 2.0) + std::pow(g * slopes.a_n, 2.0);
    }
    const double tolerance = 32 * unit_roundoff<M>() + unit_roundoff<T>();
    expect_close(h.host, h2, tolerance);
    expect_close(x.host, d2, tolerance);
    // Sums of terms with independent roundings, and of as many partial sums.
    const double of_sums = 64 * std::sqrt(size) * unit_roundoff<M>();
    EXPECT_NEAR(static_cast<double>(da_p.host[0]), p2, of_sums);
    EXPECT_NEAR(static_cast<double>(da_n.host[0]), n2, of_sums);
  }
}

// Near 0 the linear term does not hide an error of the other.
TEST(Xielu, KeepsItsDigitsNearZero) {
  Timers timers;
  Device device(timers);
  const Array<float> a_p(1, 0.3), a_n(1, 30.0);
  for (const double at : {-1e-5, -1e-3, -0.1, -0.49, -0.51}) {
    Array<float> x(1, at), h(1);
    kernels::xielu_forward<float>(device, {a_p.read(), a_n.read()}, x.read(1, 1), h.matrix(1, 1));
    h.pull();
    const double expected = kernels::reference::xielu(a_p.host[0], a_n.host[0], x.host[0]);
    EXPECT_NEAR(h.host[0], expected, 8 * unit_roundoff<float>() * (std::abs(expected) + std::abs(at))) << at;
  }
}

// Shards of the columns on several ranks give nodes of the tree, as do segments of the tokens.
TYPED_TEST(Xielu, SumsFollowTheTree) {
  using T = TypeParam;
  using M = master_t<T>;
  const index_t rows = 26, columns = 42;
  const Array<M> a_p(1, 0.3), a_n(1, -1.2);
  const kernels::ActivationScalars<M> a{a_p.read(), a_n.read()};
  const auto x = Array<T>::random(rows * columns, 1, 2.0), dh = Array<T>::random(rows * columns, 2);
  // Sums of a block of the matrix in this order.
  const auto sums = [&](const Range& tokens, const Range& part, const kernels::ScalarOrder& order) {
    Array<T> in(tokens.size() * part.size()), gradient(tokens.size() * part.size());
    for (index_t i = 0; i < tokens.size(); ++i) {
      for (index_t c = 0; c < part.size(); ++c) {
        const auto from = static_cast<std::size_t>((tokens.begin + i) * columns + part.begin + c);
        const auto to = static_cast<std::size_t>(i * part.size() + c);
        in.host[to] = x.host[from], gradient.host[to] = dh.host[from];
      }
    }
    in.push(), gradient.push();
    Array<M> work(kernels::xielu_workspace_size(built_for, tokens.size(), part.size(), order));
    kernels::xielu_backward_parts<T>(this->device_, a, in.matrix(tokens.size(), part.size()),
                                     gradient.read(tokens.size(), part.size()), work.vector(), order);
    work.pull();
    return std::vector<M>(work.host.begin(), work.host.begin() + 2 * order.token_segments);
  };
  const auto add = [](std::vector<M> l, const std::vector<M>& r) {
    for (std::size_t i = 0; i < l.size(); ++i) l[i] += r[i];
    return l;
  };
  const auto both = [](std::vector<M> l, const std::vector<M>& r) {
    l.insert(l.end(), r.begin(), r.end());
    return l;
  };
  const Range all{0, rows};
  const auto on_two_ranks = [&](int rank) {
    return sums(all, shard_range(columns, 4, 2, rank), {.columns = SumOrder({{columns, 1}}, 4, 2, rank)});
  };
  EXPECT_EQ(sums(all, {0, columns}, {.columns = SumOrder({{columns, 1}}, 4, 1, 0)}),
            add(on_two_ranks(0), on_two_ranks(1)));
  EXPECT_EQ(sums(all, {0, columns}, {.token_segments = 2}),
            both(sums({0, rows / 2}, {0, columns}, {}), sums({rows / 2, rows}, {0, columns}, {})));
  // Three shards of the columns are no node of a tree of six leaves.
  const kernels::ScalarOrder of_three{.columns = SumOrder({{columns, 1}}, 3, 1, 0)};
  EXPECT_EQ(sums(all, {0, columns}, {.columns = of_three.columns, .token_segments = 2}),
            both(sums({0, rows / 2}, {0, columns}, of_three), sums({rows / 2, rows}, {0, columns}, of_three)));
}

TEST(XieluReference, SlopesAreTheFiniteDifferences) {
  using kernels::reference::xielu;
  constexpr double h = 1e-6;
  for (double x = -4.0; x < 4.0; x += 0.31) {
    const auto slopes = kernels::reference::xielu_slopes(0.3, -1.2, x);
    EXPECT_NEAR(slopes.x, (xielu(0.3, -1.2, x + h) - xielu(0.3, -1.2, x - h)) / (2 * h), 1e-8) << x;
    EXPECT_NEAR(slopes.a_p, (xielu(0.3 + h, -1.2, x) - xielu(0.3 - h, -1.2, x)) / (2 * h), 1e-8) << x;
    EXPECT_NEAR(slopes.a_n, (xielu(0.3, -1.2 + h, x) - xielu(0.3, -1.2 - h, x)) / (2 * h), 1e-8) << x;
  }
}

}  // namespace
}  // namespace nanotron::test
