// ranks: 1
#include <bit>

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
