// ranks: 1
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/norm/projection_norm.hpp"
#include "support/reference/projection_norm.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

constexpr double eps = 1e-3;
constexpr index_t rows = 12, columns = 24, gap = 5;

// A row whose columns are those of two ranks: [0, 16) and [8, 24), of which the second has columns 8 ... 15 too, with a
// part of their gradient.
constexpr Range shards[] = {{0, 16}, {8, 24}};

template <class T>
class ProjectionNorm : public KernelTest<T> {
 protected:
  using M = master_t<T>;

  ProjectionNorm()
      : x_(Array<T>::random(rows * (columns + gap), 1)),
        dy_(Array<T>::random(rows * (columns + gap), 2)),
        w_(Array<M>::random(columns, 3)) {}

  MatrixRef<T> part(const Array<T>& a, const Range& r) const {
    return MatrixRef<T>(a.data(), rows, columns, columns + gap).column_block(r.begin, r.size());
  }
  Vector<const M> weights(const Range& r) const {
    return Vector<const M>(w_.data() + r.begin, static_cast<std::size_t>(r.size()));
  }
  // What a rank owns, counted from its first column.
  static Range owned(int rank) { return rank == 0 ? Range{0, 16} : Range{8, 16}; }
  static SumOrder order(int rank) {
    const Range mine = owned(rank);
    return SumOrder(
        {{.extent = mine.size(), .before = static_cast<int>(mine.begin), .after = static_cast<int>(16 - mine.end)}}, 2,
        1, 0);
  }

  // The sum over both ranks, in the first.
  void add(Array<M>& to, const Array<M>& from) const {
    for (std::size_t i = 0; i < to.host.size(); ++i) to.host[i] += from.host[i];
    to.push();
  }

  std::vector<double> dense(const Array<T>& a) const {
    std::vector<double> values;
    for (index_t i = 0; i < rows; ++i) {
      for (index_t c = 0; c < columns; ++c) {
        values.push_back(static_cast<double>(a.host[static_cast<std::size_t>(i * (columns + gap) + c)]));
      }
    }
    return values;
  }

  Array<T> x_, dy_;
  Array<M> w_;
};
TYPED_TEST_SUITE(ProjectionNorm, ScalarTypes);

TYPED_TEST(ProjectionNorm, OfTwoRanksFollowsTheReferenceAndItsFiniteDifferences) {
  using T = TypeParam;
  using M = master_t<T>;
  Array<T> y(rows * (columns + gap)), dx[2] = {Array<T>(rows * columns), Array<T>(rows * columns)};
  Array<M> statistics(rows), other(rows), sums(rows), dw[2] = {Array<M>(columns), Array<M>(columns)};
  kernels::projection_squares<T>(this->device_, this->part(this->x_, shards[0]), this->order(0), statistics.vector());
  kernels::projection_squares<T>(this->device_, this->part(this->x_, shards[1]), this->order(1), other.vector());
  this->device_.fence();
  statistics.pull(), other.pull();
  this->add(statistics, other);
  // The second rank's norm would begin from the sums again: it has the same 1 / sqrt(mean square).
  kernels::projection_norm_forward<T>(this->device_, this->part(this->x_, {0, columns}), this->weights({0, columns}),
                                      columns, eps, this->part(y, {0, columns}), statistics.vector());
  // Half of the gradient of the common columns to each.
  Array<T> part_of_dy[2] = {this->dy_, this->dy_};
  for (int rank = 0; rank < 2; ++rank) {
    for (index_t i = 0; i < rows; ++i) {
      for (index_t c = 8; c < 16; ++c) {
        T& value = part_of_dy[rank].host[static_cast<std::size_t>(i * (columns + gap) + c)];
        value = static_cast<T>(0.5f * static_cast<float>(value));
      }
    }
    part_of_dy[rank].push();
  }
  for (int rank = 0; rank < 2; ++rank) {
    Array<M>& to = rank == 0 ? sums : other;
    kernels::projection_products<T>(this->device_, this->part(part_of_dy[rank], shards[rank]),
                                    this->part(this->x_, shards[rank]), this->weights(shards[rank]),
                                    SumOrder({{16, 1}}, 4, 1, 0), to.vector());
  }
  this->device_.fence();
  sums.pull(), other.pull();
  this->add(sums, other);
  Array<M> work(kernels::bias_workspace_size(built_for, rows, 16, 3));
  for (int rank = 0; rank < 2; ++rank) {
    const MatrixRef<T> target(dx[rank].data(), rows, 16, columns);
    kernels::projection_norm_backward<T>(this->device_, this->part(part_of_dy[rank], shards[rank]),
                                         {this->part(this->x_, shards[rank]), this->weights(shards[rank]),
                                          statistics.read(), sums.read(), columns, this->owned(rank)},
                                         target, Vector<M>(dw[rank].data(), 16), work.vector(), 3);
  }
  this->device_.fence();
  y.pull();
  for (int rank = 0; rank < 2; ++rank) dx[rank].pull(), dw[rank].pull();

  const std::vector<double> x = this->dense(this->x_), dy = this->dense(this->dy_),
                            w(this->w_.host.begin(), this->w_.host.end());
  std::vector<double> expected(x.size());
  const auto loss = [&](const std::vector<double>& a, const std::vector<double>& b) {
    kernels::reference::projection_norm({a.data(), rows, columns}, b.data(), eps, matrix_of(expected, rows, columns));
    return dot(expected, dy);
  };
  loss(x, w);
  const double roundings = is_bf16<T> ? 4 : 32;
  std::vector<T> ours;
  for (index_t i = 0; i < rows; ++i) {
    for (index_t c = 0; c < columns; ++c) ours.push_back(y.host[static_cast<std::size_t>(i * (columns + gap) + c)]);
  }
  expect_close(ours, expected, roundings * unit_roundoff<T>());
  // dx and dw of the two ranks, added where both have a column.
  std::vector<double> of_x(x.size()), of_w(columns);
  for (int rank = 0; rank < 2; ++rank) {
    for (index_t c = 0; c < 16; ++c) {
      const index_t column = shards[rank].begin + c;
      of_w[static_cast<std::size_t>(column)] += static_cast<double>(dw[rank].host[static_cast<std::size_t>(c)]);
      for (index_t i = 0; i < rows; ++i) {
        of_x[static_cast<std::size_t>(i * columns + column)] +=
            static_cast<double>(dx[rank].host[static_cast<std::size_t>(i * columns + c)]);
      }
    }
  }
  expect_close(of_x, finite_difference(x, [&](const auto& a) { return loss(a, w); }),
               1e-7 + roundings * unit_roundoff<T>(), 4.0);
  expect_close(of_w, finite_difference(w, [&](const auto& b) { return loss(x, b); }),
               1e-7 + (is_bf16<T> ? 4 * unit_roundoff<T>() : 64 * unit_roundoff<M>()), 4.0);
}

}  // namespace
}  // namespace nanotron::test
