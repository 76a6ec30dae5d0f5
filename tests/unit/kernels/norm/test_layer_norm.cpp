// ranks: 1
#include "nanotron/kernels/norm/norm.hpp"
#include "support/reference/layer_norm.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

constexpr double eps = 1e-5;

template <class T>
class LayerNorm : public KernelTest<T> {
 protected:
  using M = master_t<T>;
  // Sums of a row run in M over 32 lanes: a few roundings of M, then one of T.
  static constexpr double tolerance = 32 * unit_roundoff<M>() + 2 * unit_roundoff<T>();
};
TYPED_TEST_SUITE(LayerNorm, ScalarTypes);

TYPED_TEST(LayerNorm, ForwardAndBackwardFollowTheReference) {
  using T = TypeParam;
  using M = master_t<T>;
  for (const auto& [rows, columns] : {std::pair<index_t, index_t>{37, 512}, {5, 77}, {1, 3}, {130, 64}, {1300, 24}}) {
    const auto x = Array<T>::random(rows * columns, 1, 3.0);
    const auto dy = Array<T>::random(rows * columns, 2);
    const auto w = Array<M>::random(columns, 3), b = Array<M>::random(columns, 4);
    Array<T> y(rows * columns), dx(rows * columns, 0.5);
    Array<M> statistics(2 * rows), dw(columns, 0.25), db(columns, -0.5),
        work(kernels::layer_norm_workspace_size(built_for, rows, columns));
    kernels::layer_norm_forward<T>(this->device_, x.read(rows, columns), w.read(), b.read(), eps,
                                   y.matrix(rows, columns), statistics.vector());
    kernels::layer_norm_backward<T>(this->device_, dy.read(rows, columns), x.read(rows, columns), w.read(),
                                    statistics.read(), dx.matrix(rows, columns), dw.vector(), db.vector(),
                                    work.vector());
    this->device_.fence();
    y.pull(), dx.pull(), dw.pull(), db.pull();
    std::vector<double> y2(y.host.size()), s2(2 * rows), dx2(y.host.size(), 0.5), dw2(columns, 0.25),
        db2(columns, -0.5);
    kernels::reference::layer_norm_forward<T, M>(x.on_host(rows, columns), w.host.data(), b.host.data(), eps,
                                                 matrix_of(y2, rows, columns), s2.data());
    kernels::reference::layer_norm_backward<T, M>(dy.on_host(rows, columns), x.on_host(rows, columns), w.host.data(),
                                                  s2.data(), matrix_of(dx2, rows, columns), dw2.data(), db2.data());
    expect_close(y.host, y2, this->tolerance);
    expect_close(dx.host, dx2, this->tolerance);
    // Sums over rows add up to sqrt(rows) roundings of M.
    const double of_sums = 16 * std::sqrt(static_cast<double>(rows)) * unit_roundoff<M>();
    expect_close(dw.host, dw2, of_sums);
    expect_close(db.host, db2, of_sums);
  }
}

TYPED_TEST(LayerNorm, AddedResidualIsRoundedOnceAndNormalised) {
  using T = TypeParam;
  using M = master_t<T>;
  const index_t rows = 9, columns = 100;
  auto x = Array<T>::random(rows * columns, 1);
  const auto delta = Array<T>::random(rows * columns, 2);
  const auto w = Array<M>::random(columns, 3), b = Array<M>::random(columns, 4);
  Array<T> y(rows * columns), y_of_sum(rows * columns);
  Array<M> statistics(2 * rows);
  std::vector<double> sum(x.host.size());
  for (std::size_t i = 0; i < sum.size(); ++i) {
    sum[i] = static_cast<double>(of<T>(static_cast<double>(x.host[i]) + static_cast<double>(delta.host[i])));
  }
  kernels::add_layer_norm_forward<T>(this->device_, x.read(rows, columns), delta.read(rows, columns),
                                     x.matrix(rows, columns), w.read(), b.read(), eps, y.matrix(rows, columns),
                                     statistics.vector());
  kernels::layer_norm_forward<T>(this->device_, x.read(rows, columns), w.read(), b.read(), eps,
                                 y_of_sum.matrix(rows, columns), statistics.vector());
  this->device_.fence();
  x.pull(), y.pull(), y_of_sum.pull();
  expect_close(x.host, sum, unit_roundoff<T>());
  EXPECT_EQ(0, std::memcmp(y.host.data(), y_of_sum.host.data(), sizeof(T) * y.host.size()));
}

// With each kind of weights, with and without biases: a norm of a block's input; and one of its output, whose gradient
// overwrites that output.
TYPED_TEST(LayerNorm, KindsOfWeights) {
  using T = TypeParam;
  using M = master_t<T>;
  const index_t rows = 21, columns = 96;
  for (const auto& [kind, has_bias] : {std::pair{ScaleKind::plain, false},
                                       {ScaleKind::one_plus, true},
                                       {ScaleKind::one_plus, false},
                                       {ScaleKind::none, false}}) {
    auto x = Array<T>::random(rows * columns, 1, 3.0);
    const auto dy = Array<T>::random(rows * columns, 2), residual = Array<T>::random(rows * columns, 5);
    const auto w = Array<M>::random(columns, 3), b = has_bias ? Array<M>::random(columns, 4) : Array<M>(columns);
    const bool has_weight = kind != ScaleKind::none;
    const kernels::NormScale<M> scale =
        has_weight ? kernels::NormScale<M>(w.read(), kind == ScaleKind::one_plus) : kernels::NormScale<M>();
    const Vector<const M> bias = has_bias ? b.read() : Vector<const M>();
    Array<T> y(rows * columns), sum(rows * columns), dx(rows * columns, 0.5);
    Array<M> statistics(2 * rows), dw(columns), db(columns),
        work(kernels::layer_norm_workspace_size(built_for, rows, columns));
    const Vector<M> dw_view = has_weight ? dw.vector() : Vector<M>(), db_view = has_bias ? db.vector() : Vector<M>();
    kernels::layer_norm_forward<T>(this->device_, x.read(rows, columns), scale, bias, eps, y.matrix(rows, columns),
                                   statistics.vector());
    kernels::layer_norm_add_forward<T>(this->device_, x.read(rows, columns), scale, bias, eps,
                                       residual.read(rows, columns), sum.matrix(rows, columns), statistics.vector());
    kernels::layer_norm_backward<T>(this->device_, dy.read(rows, columns), x.read(rows, columns), scale,
                                    statistics.read(), dx.matrix(rows, columns), dw_view, db_view, work.vector());
    const std::vector<T> input = x.host;
    kernels::layer_norm_add_backward<T>(this->device_, dy.read(rows, columns), x.read(rows, columns), scale,
                                        statistics.read(), x.matrix(rows, columns), dw_view, db_view, work.vector());
    this->device_.fence();
    y.pull(), sum.pull(), dx.pull(), dw.pull(), db.pull(), x.pull();
    const std::vector<M> factors = factors_of(kind, w.host);
    std::vector<double> y2(input.size()), s2(2 * rows), dx2(input.size()), dw2(columns), db2(columns);
    const MatrixRef<const T> source{input.data(), rows, columns};
    kernels::reference::layer_norm_forward<T, M>(source, factors.data(), b.host.data(), eps,
                                                 matrix_of(y2, rows, columns), s2.data());
    kernels::reference::layer_norm_backward<T, M>(dy.on_host(rows, columns), source, factors.data(), s2.data(),
                                                  matrix_of(dx2, rows, columns), dw2.data(), db2.data());
    expect_close(y.host, y2, this->tolerance);
    expect_close(x.host, dx2, this->tolerance);
    for (std::size_t i = 0; i < input.size(); ++i) y2[i] += static_cast<double>(residual.host[i]), dx2[i] += 0.5;
    expect_close(sum.host, y2, 2 * this->tolerance);
    expect_close(dx.host, dx2, this->tolerance);
    // Both backwards have added to them.
    for (double& g : dw2) g *= has_weight ? 2 : 0;
    for (double& g : db2) g *= has_bias ? 2 : 0;
    expect_close(dw.host, dw2, 200 * unit_roundoff<M>());
    expect_close(db.host, db2, 200 * unit_roundoff<M>());
  }
}

// The sums of four quarters, added as a tree, are those of one call with four segments.
TYPED_TEST(LayerNorm, SegmentsAreANodeOfTheTree) {
  using T = TypeParam;
  using M = master_t<T>;
  const index_t rows = 4 * 13, columns = 70;
  const auto x = Array<T>::random(rows * columns, 1), dy = Array<T>::random(rows * columns, 2);
  const auto w = Array<M>::random(columns, 3), b = Array<M>::random(columns, 4);
  Array<T> y(rows * columns), dx(rows * columns);
  Array<M> statistics(2 * rows), dw(columns), db(columns),
      work(kernels::layer_norm_workspace_size(built_for, rows, columns, 4));
  kernels::layer_norm_forward<T>(this->device_, x.read(rows, columns), w.read(), b.read(), eps, y.matrix(rows, columns),
                                 statistics.vector());
  kernels::layer_norm_backward<T>(this->device_, dy.read(rows, columns), x.read(rows, columns), w.read(),
                                  statistics.read(), dx.matrix(rows, columns), dw.vector(), db.vector(), work.vector(),
                                  {.tokens = 4});
  dw.pull(), db.pull();
  std::vector<std::vector<M>> of_weight, of_bias;
  for (index_t s = 0; s < 4; ++s) {
    Array<M> dw_part(columns), db_part(columns);
    const index_t first = s * 13;
    const auto part = [&](const Array<T>& a) { return Matrix<const T>(a.data() + first * columns, 13, columns); };
    kernels::layer_norm_backward<T>(
        this->device_, part(dy), part(x), w.read(), Vector<const M>(statistics.data() + 2 * first, 2 * 13),
        Matrix<T>(dx.data() + first * columns, 13, columns), dw_part.vector(), db_part.vector(), work.vector());
    dw_part.pull(), db_part.pull();
    of_weight.push_back(dw_part.host);
    of_bias.push_back(db_part.host);
  }
  for (std::size_t c = 0; c < static_cast<std::size_t>(columns); ++c) {
    EXPECT_EQ(dw.host[c], (of_weight[0][c] + of_weight[1][c]) + (of_weight[2][c] + of_weight[3][c]));
    EXPECT_EQ(db.host[c], (of_bias[0][c] + of_bias[1][c]) + (of_bias[2][c] + of_bias[3][c]));
  }
}

TEST(LayerNormReference, GradientIsTheFiniteDifference) {
  const index_t rows = 3, columns = 7;
  const auto x = Array<double>::random(rows * columns, 1), dy = Array<double>::random(rows * columns, 2);
  const auto w = Array<double>::random(columns, 3), b = Array<double>::random(columns, 4);
  std::vector<double> y(x.host.size()), statistics(2 * rows), dx(x.host.size()), dw(columns), db(columns);
  const auto loss = [&](const std::vector<double>& at, const std::vector<double>& weights,
                        const std::vector<double>& biases) {
    kernels::reference::layer_norm_forward<double, double>({at.data(), rows, columns}, weights.data(), biases.data(),
                                                           eps, matrix_of(y, rows, columns), statistics.data());
    return dot(y, dy.host);
  };
  loss(x.host, w.host, b.host);
  kernels::reference::layer_norm_backward<double, double>(dy.on_host(rows, columns), x.on_host(rows, columns),
                                                          w.host.data(), statistics.data(),
                                                          matrix_of(dx, rows, columns), dw.data(), db.data());
  expect_close(dx, finite_difference(x.host, [&](const auto& at) { return loss(at, w.host, b.host); }), 1e-8);
  expect_close(dw, finite_difference(w.host, [&](const auto& at) { return loss(x.host, at, b.host); }), 1e-8);
  expect_close(db, finite_difference(b.host, [&](const auto& at) { return loss(x.host, w.host, at); }), 1e-8);
}

}  // namespace
}  // namespace nanotron::test
