// ranks: 1
#include <bit>
#include <cmath>

#include "nanotron/deck/config.hpp"
#include "nanotron/kernels/gemm/gemm.hpp"
#include "support/reference/gemm.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

using kernels::Op;

// The order of a sum whose terms are those of two blocks one behind the other, as in gate | up.
SumOrder two_blocks(index_t extent, int shards, int parts, int index) {
  return SumOrder({{extent, 1}, {extent, 2}}, shards, parts, index);
}

template <class T>
class GemmFixedOrder : public testing::Test {
 protected:
  static constexpr index_t m = 133, n = 83, extent = 45, k = 3 * extent;

  void SetUp() override {
    memory_ = Kokkos::View<std::byte*, MemorySpace>(
        "product workspace", kernels::gemm_workspace_bytes<T>(GemmMode::fixed_order, built_for, m, n, k));
    device_.set_gemm_workspace(Vector<std::byte>(memory_.data(), memory_.extent(0)));
  }

  template <class C>
  std::vector<C> multiply(Op op_a, Op op_b, MatrixRef<const T> a, MatrixRef<const T> b, index_t rows, index_t columns,
                          const SumOrder& order, double beta = 0.0) {
    auto c = Array<C>::random(rows * columns, 3);
    kernels::gemm<T, C>(device_, op_a, op_b, 1.0, a, b, beta, MatrixRef<C>(c.data(), rows, columns), order);
    device_.fence();
    c.pull();
    return c.host;
  }

  Timers timers_;
  Device device_{timers_, GemmMode::fixed_order};
  Kokkos::View<std::byte*, MemorySpace> memory_;
};
TYPED_TEST_SUITE(GemmFixedOrder, ScalarTypes);

TYPED_TEST(GemmFixedOrder, IsTheProduct) {
  using T = TypeParam;
  using M = master_t<T>;
  const index_t m = this->m, n = this->n, k = this->k;
  const auto a = Array<T>::random(m * k, 1), b = Array<T>::random(k * n, 2);
  for (const Op op_a : {Op::none, Op::transpose}) {
    for (const Op op_b : {Op::none, Op::transpose}) {
      const MatrixRef<const T> on_host_a = op_a == Op::none ? a.on_host(m, k) : a.on_host(k, m);
      const MatrixRef<const T> on_host_b = op_b == Op::none ? b.on_host(k, n) : b.on_host(n, k);
      const auto c = Array<M>::random(m * n, 3);
      std::vector<double> expected(c.host.begin(), c.host.end());
      kernels::reference::gemm<T>(op_a, op_b, 1.0, on_host_a, on_host_b, 0.5, matrix_of(expected, m, n));
      const MatrixRef<const T> left(a.data(), on_host_a.rows, on_host_a.columns);
      const MatrixRef<const T> right(b.data(), on_host_b.rows, on_host_b.columns);
      for (const SumOrder& order : {SumOrder{}, two_blocks(this->extent, 6, 1, 0)}) {
        expect_close(this->template multiply<M>(op_a, op_b, left, right, m, n, order, 0.5), expected,
                     4 * static_cast<double>(k) * unit_roundoff<M>());
      }
    }
  }
}

// Rows and columns alone, other leading dimensions: the same bits.
TYPED_TEST(GemmFixedOrder, AnElementDoesNotDependOnItsNeighbours) {
  using T = TypeParam;
  const index_t m = this->m, n = this->n, k = this->k;
  const auto a = Array<T>::random(m * k, 1), b = Array<T>::random(k * n, 2);
  const auto whole = this->template multiply<T>(Op::none, Op::none, {a.data(), m, k}, {b.data(), k, n}, m, n, {});
  for (const auto& [row, rows, column, columns] :
       {std::array<index_t, 4>{0, 1, 0, 1}, {7, 50, 3, 64}, {100, 33, 70, 13}, {132, 1, 0, 83}}) {
    const auto part =
        this->template multiply<T>(Op::none, Op::none, MatrixRef<const T>(a.data(), m, k).row_block(row, rows),
                                   MatrixRef<const T>(b.data(), k, n).column_block(column, columns), rows, columns, {});
    for (index_t i = 0; i < rows; ++i) {
      for (index_t j = 0; j < columns; ++j) {
        const auto here = static_cast<std::size_t>(i * columns + j);
        const auto there = static_cast<std::size_t>((row + i) * n + column + j);
        ASSERT_EQ(static_cast<double>(part[here]), static_cast<double>(whole[there])) << row + i << ", " << column + j;
      }
    }
  }
}

// sums[begin] <- the sum of [begin, end): the first half, of a power of two, and the rest.
template <class T>
void add_in_tree(std::vector<std::vector<T>>& sums, std::size_t begin, std::size_t end) {
  if (end - begin < 2) return;
  const std::size_t middle = begin + std::bit_ceil(end - begin) / 2;
  add_in_tree(sums, begin, middle);
  add_in_tree(sums, middle, end);
  for (std::size_t i = 0; i < sums[begin].size(); ++i) {
    using M = master_t<T>;
    sums[begin][i] = static_cast<T>(static_cast<M>(sums[begin][i]) + static_cast<M>(sums[middle][i]));
  }
}

// Parts that hold nodes of the tree add up to the bits of the whole; parts that do not, do not.
TYPED_TEST(GemmFixedOrder, PartsAddUpToTheWhole) {
  using T = TypeParam;
  const index_t m = this->m, n = this->n, extent = this->extent;
  for (const auto& [shards, parts] : {std::pair{8, 2}, {8, 4}, {8, 8}, {6, 3}, {6, 6}, {3, 3}}) {
    ASSERT_TRUE(deck::holds_node(shards, parts));
    const auto a = Array<T>::random(m * this->k, 1), b = Array<T>::random(this->k * n, 2);
    const auto whole = this->template multiply<T>(Op::none, Op::none, {a.data(), m, this->k}, {b.data(), this->k, n}, m,
                                                  n, two_blocks(extent, shards, 1, 0));
    std::vector<std::vector<T>> sums;
    for (int part = 0; part < parts; ++part) {
      // The blocks of this part, one behind the other.
      const Range held = shard_range(extent, shards, parts, part);
      Array<T> local_a(m * 3 * held.size()), local_b(3 * held.size() * n);
      index_t at = 0;
      const auto take = [&](index_t term) {
        for (index_t i = 0; i < m; ++i) {
          local_a.host[static_cast<std::size_t>(i * 3 * held.size() + at)] =
              a.host[static_cast<std::size_t>(i * this->k + term)];
        }
        std::copy_n(b.host.begin() + term * n, n, local_b.host.begin() + at * n);
        ++at;
      };
      for (index_t i = held.begin; i < held.end; ++i) take(i);
      for (index_t i = 2 * held.begin; i < 2 * held.end; ++i) take(extent + i);
      local_a.push(), local_b.push();
      sums.push_back(this->template multiply<T>(Op::none, Op::none, {local_a.data(), m, at}, {local_b.data(), at, n}, m,
                                                n, two_blocks(extent, shards, parts, part)));
    }
    add_in_tree(sums, 0, sums.size());
    for (std::size_t i = 0; i < whole.size(); ++i) {
      ASSERT_EQ(static_cast<double>(sums[0][i]), static_cast<double>(whole[i]))
          << shards << " shards, " << parts << " parts";
    }
  }
}

TYPED_TEST(GemmFixedOrder, TermsOfOtherRanksAreLeftOut) {
  using T = TypeParam;
  const index_t m = this->m, n = this->n, k = this->k, mine = this->extent;
  const int before = 40, after = static_cast<int>(k - before - mine);
  const auto a = Array<T>::random(m * k, 1), b = Array<T>::random(k * n, 2);
  for (const Op op : {Op::none, Op::transpose}) {
    const MatrixRef<const T> rows(b.data(), k, n), columns(b.data(), n, k);
    const auto ours =
        this->template multiply<T>(Op::none, op, {a.data(), m, k}, op == Op::none ? rows : columns, m, n,
                                   SumOrder({{.extent = mine, .before = before, .after = after}}, 6, 1, 0));
    const auto alone =
        this->template multiply<T>(Op::none, op, MatrixRef<const T>(a.data(), m, k).column_block(before, mine),
                                   op == Op::none ? rows.row_block(before, mine) : columns.column_block(before, mine),
                                   m, n, SumOrder({{mine, 1}}, 6, 1, 0));
    for (std::size_t i = 0; i < ours.size(); ++i)
      ASSERT_EQ(static_cast<double>(ours[i]), static_cast<double>(alone[i]));
  }
}

TYPED_TEST(GemmFixedOrder, ARankWithoutTermsHasZeros) {
  using T = TypeParam;
  const index_t m = this->m, n = this->n, k = this->k;
  const auto a = Array<T>::random(m * k, 1), b = Array<T>::random(k * n, 2);
  const SumOrder none({{.extent = 1, .before = 100, .after = static_cast<int>(k - 100)}}, 8, 8, 7);
  for (const T x : this->template multiply<T>(Op::none, Op::none, {a.data(), m, k}, {b.data(), k, n}, m, n, none))
    ASSERT_EQ(static_cast<double>(x), 0.0);
}

// Cuts that are counted, some shards without a term.
TYPED_TEST(GemmFixedOrder, CountedCutsAreThoseOfTheShards) {
  using T = TypeParam;
  const index_t m = this->m, n = this->n, k = this->k;
  const auto a = Array<T>::random(m * k, 1), b = Array<T>::random(k * n, 2);
  const auto product = [&](index_t terms, const SumOrder& order) {
    return this->template multiply<T>(Op::none, Op::none, MatrixRef<const T>(a.data(), m, k).column_block(0, terms),
                                      {b.data(), terms, n}, m, n, order);
  };
  const auto expect_same = [](const std::vector<T>& x, const std::vector<T>& y) {
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(static_cast<double>(x[i]), static_cast<double>(y[i])) << i;
  };
  Array<std::int64_t> cuts(6), empty(4);
  const SumOrder even({{k, 1}}, 5, 1, 0);
  for (int s = 0; s <= 5; ++s) cuts.host[static_cast<std::size_t>(s)] = s < 5 ? even.terms(0, s).begin : k;
  empty.host = {0, 0, 40, 40};
  cuts.push(), empty.push();
  expect_same(product(k, SumOrder::at_cuts(cuts.data(), 5, k)), product(k, even));
  expect_same(product(40, SumOrder::at_cuts(empty.data(), 3, 40)), product(40, {}));
}

// Flushed as with FTZ and DAZ; no result of these tests is rounded up to 2^-126, where std::fma does not say from
// where.
float flush(float x) { return std::fabs(x) < 0x1p-126F ? std::copysign(0.0F, x) : x; }

class GemmOfPairs : public GemmFixedOrder<bf16> {
 protected:
  // op(A) (m, terms) op(B) (terms, n), whose one shard has these ranges.
  void expect_expected(const Array<bf16>& a, const Array<bf16>& b, index_t terms, const std::vector<Range>& ranges,
                       const SumOrder& order) {
    const auto whole = expected(a, b, terms, ranges);
    for (const Op op_a : {Op::none, Op::transpose}) {
      for (const Op op_b : {Op::none, Op::transpose}) {
        const Array<bf16> left = op_a == Op::none ? a : transposed(a, m, terms),
                          right = op_b == Op::none ? b : transposed(b, terms, n);
        const auto of_a = op_a == Op::none ? std::pair{m, terms} : std::pair{terms, m};
        const auto of_b = op_b == Op::none ? std::pair{terms, n} : std::pair{n, terms};
        const auto ours = multiply<float>(op_a, op_b, {left.data(), of_a.first, of_a.second},
                                          {right.data(), of_b.first, of_b.second}, m, n, order);
        ASSERT_EQ(ours.size(), whole.size());
        for (std::size_t at = 0; at < ours.size(); ++at) {
          ASSERT_EQ(std::bit_cast<std::uint32_t>(ours[at]), std::bit_cast<std::uint32_t>(whole[at]))
              << at << ": " << ours[at] << ", " << whole[at];
        }
      }
    }
  }

  // Of ranges that fill tiles well, and of those that do not.
  void expect_expected(const Array<bf16>& a, const Array<bf16>& b) {
    expect_expected(a, b, k, {{0, k}}, {});
    expect_expected(a, b, k, {{0, extent}, {extent, k}}, two_blocks(extent, 1, 1, 0));
    expect_expected(a, b, 15, {{0, 15}}, {});
    expect_expected(a, b, 67, {{0, 65}, {65, 66}, {66, 67}}, SumOrder({{65, 1}, {1, 1}, {1, 1}}, 1, 1, 0));
  }

 private:
  // By plain loops: for each 32 terms of a range the sum of even and of odd ones.
  static std::vector<float> expected(const Array<bf16>& a, const Array<bf16>& b, index_t terms,
                                     const std::vector<Range>& ranges) {
    std::vector<float> c(static_cast<std::size_t>(m * n));
    for (index_t i = 0; i < m; ++i) {
      for (index_t j = 0; j < n; ++j) {
        float& sum = c[static_cast<std::size_t>(i * n + j)];
        for (const Range& range : ranges) {
          for (index_t first = range.begin; first < range.end; first += 32) {
            float sums[2] = {};
            for (index_t t = 0; t < 32; ++t) {
              const index_t at = first + t;
              const bool is_there = at < range.end;
              const float x = is_there ? static_cast<float>(a.host[static_cast<std::size_t>(i * terms + at)]) : 0.0F;
              const float y = is_there ? static_cast<float>(b.host[static_cast<std::size_t>(at * n + j)]) : 0.0F;
              sums[t % 2] = flush(std::fma(flush(x), flush(y), sums[t % 2]));
            }
            sum = flush(sum + flush(sums[0] + sums[1]));
          }
        }
      }
    }
    return c;
  }

  static Array<bf16> transposed(const Array<bf16>& x, index_t rows, index_t columns) {
    Array<bf16> y(rows * columns);
    for (index_t i = 0; i < rows; ++i) {
      for (index_t j = 0; j < columns; ++j)
        y.host[static_cast<std::size_t>(j * rows + i)] = x.host[static_cast<std::size_t>(i * columns + j)];
    }
    y.push();
    return y;
  }
};

TEST_F(GemmOfPairs, HasTheOrderOfAmx) { expect_expected(Array<bf16>::random(m * k, 1), Array<bf16>::random(k * n, 2)); }

// Products, sums and operands around 2^-126, of both signs.
TEST_F(GemmOfPairs, FlushesSubnormalNumbers) {
  auto a = Array<bf16>::random(m * k, 1), b = Array<bf16>::random(k * n, 2);
  const auto scale = [](Array<bf16>& x, int exponent, index_t period) {
    for (std::size_t i = 0; i < x.host.size(); ++i) {
      const int step = static_cast<int>(i % static_cast<std::size_t>(period));
      x.host[i] = bf16(std::ldexp(static_cast<float>(x.host[i]), exponent - step));
    }
    x.push();
  };
  scale(a, -60, 7);
  scale(b, -62, 5);
  expect_expected(a, b);
  scale(a, -66, 3);  // the operand alone is subnormal
  scale(b, 100, 1);
  expect_expected(a, b);
}

// 2^-126 minus some part of it: the sum is rounded to 24 bits before it is found too small.
TEST_F(GemmOfPairs, FlushesAfterRounding) {
  for (const auto& [factor, expected] : {std::pair{0x1p-76F, 0x1p-126F}, {0x1p-75F, 0x1p-126F}, {0x1.8p-75F, 0.0F}}) {
    Array<bf16> a(m * k), b(k * n);
    std::fill(a.host.begin(), a.host.end(), bf16(0.0F));
    std::fill(b.host.begin(), b.host.end(), bf16(0.0F));
    for (index_t i = 0; i < m; ++i) {
      a.host[static_cast<std::size_t>(i * k)] = bf16(0x1p-63F);
      a.host[static_cast<std::size_t>(i * k + 2)] = bf16(-factor);
    }
    for (index_t j = 0; j < n; ++j) {
      b.host[static_cast<std::size_t>(j)] = bf16(0x1p-63F);
      b.host[static_cast<std::size_t>(2 * n + j)] = bf16(0x1p-76F);
    }
    a.push(), b.push();
    for (const float x : multiply<float>(Op::none, Op::none, {a.data(), m, k}, {b.data(), k, n}, m, n, {}))
      ASSERT_EQ(x, expected) << factor;
  }
}

TEST(SumOrder, KnowsWhoHoldsANode) {
  EXPECT_TRUE(deck::holds_node(8, 1) && deck::holds_node(8, 2) && deck::holds_node(6, 3) && deck::holds_node(7, 7) &&
              deck::holds_node(6, 1));
  EXPECT_FALSE(deck::holds_node(6, 2) || deck::holds_node(8, 3) || deck::holds_node(9, 3) || deck::holds_node(4, 8));
}

TEST(SumOrder, NestedCutsCoverTheExtentInOrder) {
  for (const index_t extent : {131, 64, 7}) {
    for (const int parts : {1, 2, 4}) {
      index_t end = 0;
      for (int p = 0; p < parts; ++p) {
        const Range r = shard_range(extent, 4, parts, p);
        EXPECT_EQ(r.begin, end);
        end = r.end;
      }
      EXPECT_EQ(end, extent);
    }
  }
}

}  // namespace
}  // namespace nanotron::test
