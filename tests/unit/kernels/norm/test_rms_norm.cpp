// ranks: 1
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/norm/norm.hpp"
#include "nanotron/tensor/shard.hpp"
#include "support/reference/rms_norm.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

constexpr double eps = 1e-5;

template <class T>
class RmsNorm : public KernelTest<T> {
 protected:
  using M = master_t<T>;
  // Sums of a row run in M over 32 lanes: a few roundings of M, then one of T.
  static constexpr double tolerance = 16 * unit_roundoff<M>() + 2 * unit_roundoff<T>();

  // Columns [first, first + 3 width) of a matrix.
  void check_heads(index_t width, index_t leading, index_t first, const kernels::RowSegments& segments);
};
TYPED_TEST_SUITE(RmsNorm, ScalarTypes);

TYPED_TEST(RmsNorm, ForwardAndBackwardFollowTheReference) {
  using T = TypeParam;
  using M = master_t<T>;
  for (const auto& [rows, columns] :
       {std::pair<index_t, index_t>{37, 512}, {5, 77}, {1, 3}, {130, 64}, {1300, 24}, {30, 9001}}) {
    const auto x = Array<T>::random(rows * columns, 1, 3.0);
    const auto dy = Array<T>::random(rows * columns, 2);
    const auto w = Array<M>::random(columns, 3);
    Array<T> y(rows * columns), dx(rows * columns, 0.5);
    Array<M> rstd(rows), dw(columns, 0.25), work(kernels::rms_norm_workspace_size(built_for, rows, columns));
    kernels::rms_norm_forward<T>(this->device_, x.read(rows, columns), w.read(), eps, y.matrix(rows, columns),
                                 rstd.vector());
    kernels::rms_norm_backward<T>(this->device_, dy.read(rows, columns), x.read(rows, columns), w.read(), rstd.read(),
                                  dx.matrix(rows, columns), dw.vector(), work.vector());
    this->device_.fence();
    y.pull(), dx.pull(), dw.pull();
    std::vector<double> y2(y.host.size()), r2(rows), dx2(y.host.size(), 0.5), dw2(columns, 0.25);
    kernels::reference::rms_norm_forward<T, M>(x.on_host(rows, columns), w.host.data(), eps,
                                               matrix_of(y2, rows, columns), r2.data());
    kernels::reference::rms_norm_backward<T, M>(dy.on_host(rows, columns), x.on_host(rows, columns), w.host.data(),
                                                r2.data(), matrix_of(dx2, rows, columns), dw2.data());
    // Sums over n terms add up to sqrt(n) roundings of M, those of the reference too.
    const double longer = std::sqrt(std::max(1.0, static_cast<double>(columns) / 512));
    expect_close(y.host, y2, longer * this->tolerance);
    expect_close(dx.host, dx2, longer * this->tolerance);
    expect_close(dw.host, dw2, 16 * longer * std::sqrt(static_cast<double>(rows)) * unit_roundoff<M>());
  }
}

TYPED_TEST(RmsNorm, AddedResidualIsRoundedOnceAndNormalised) {
  using T = TypeParam;
  using M = master_t<T>;
  const index_t rows = 9, columns = 100;
  auto x = Array<T>::random(rows * columns, 1);
  const auto delta = Array<T>::random(rows * columns, 2);
  const auto w = Array<M>::random(columns, 3);
  Array<T> y(rows * columns), y_of_sum(rows * columns);
  Array<M> rstd(rows);
  std::vector<double> sum(x.host.size());
  for (std::size_t i = 0; i < sum.size(); ++i) {
    sum[i] = static_cast<double>(of<T>(static_cast<double>(x.host[i]) + static_cast<double>(delta.host[i])));
  }
  kernels::add_rms_norm_forward<T>(this->device_, x.read(rows, columns), delta.read(rows, columns),
                                   x.matrix(rows, columns), w.read(), eps, y.matrix(rows, columns), rstd.vector());
  kernels::rms_norm_forward<T>(this->device_, x.read(rows, columns), w.read(), eps, y_of_sum.matrix(rows, columns),
                               rstd.vector());
  this->device_.fence();
  x.pull(), y.pull(), y_of_sum.pull();
  expect_close(x.host, sum, unit_roundoff<T>());
  EXPECT_EQ(0, std::memcmp(y.host.data(), y_of_sum.host.data(), sizeof(T) * y.host.size()));
}

template <class M>
kernels::NormScale<M> scale_of(ScaleKind kind, const Array<M>& w) {
  return kind == ScaleKind::none ? kernels::NormScale<M>()
                                 : kernels::NormScale<M>(w.read(), kind == ScaleKind::one_plus);
}

// With each kind of weights: a norm of a block's input; and one of its output, whose gradient overwrites that output.
TYPED_TEST(RmsNorm, KindsOfWeights) {
  using T = TypeParam;
  using M = master_t<T>;
  const index_t rows = 21, columns = 96;
  for (const ScaleKind kind : scale_kinds) {
    auto x = Array<T>::random(rows * columns, 1, 3.0);
    const auto dy = Array<T>::random(rows * columns, 2), residual = Array<T>::random(rows * columns, 5);
    const auto w = Array<M>::random(columns, 3);
    const kernels::NormScale<M> scale = scale_of(kind, w);
    Array<T> y(rows * columns), sum(rows * columns), dx(rows * columns, 0.5);
    Array<M> rstd(rows), dw(columns, 0.25), dw_of_sum(columns),
        work(kernels::rms_norm_workspace_size(built_for, rows, columns));
    const Vector<M> gradient = kind == ScaleKind::none ? Vector<M>() : dw.vector(),
                    gradient_of_sum = kind == ScaleKind::none ? Vector<M>() : dw_of_sum.vector();
    kernels::rms_norm_forward<T>(this->device_, x.read(rows, columns), scale, eps, y.matrix(rows, columns),
                                 rstd.vector());
    kernels::rms_norm_add_forward<T>(this->device_, x.read(rows, columns), scale, eps, residual.read(rows, columns),
                                     sum.matrix(rows, columns), rstd.vector());
    kernels::rms_norm_backward<T>(this->device_, dy.read(rows, columns), x.read(rows, columns), scale, rstd.read(),
                                  dx.matrix(rows, columns), gradient, work.vector());
    const std::vector<T> input = x.host;
    kernels::rms_norm_add_backward<T>(this->device_, dy.read(rows, columns), x.read(rows, columns), scale, rstd.read(),
                                      x.matrix(rows, columns), gradient_of_sum, work.vector());
    this->device_.fence();
    y.pull(), sum.pull(), dx.pull(), dw.pull(), dw_of_sum.pull(), x.pull();
    const std::vector<M> factors = factors_of(kind, w.host);
    std::vector<double> y2(input.size()), r2(rows), dx2(input.size()), dw2(columns);
    const MatrixRef<const T> source{input.data(), rows, columns};
    kernels::reference::rms_norm_forward<T, M>(source, factors.data(), eps, matrix_of(y2, rows, columns), r2.data());
    kernels::reference::rms_norm_backward<T, M>(dy.on_host(rows, columns), source, factors.data(), r2.data(),
                                                matrix_of(dx2, rows, columns), dw2.data());
    expect_close(y.host, y2, this->tolerance);
    expect_close(x.host, dx2, this->tolerance);
    for (std::size_t i = 0; i < input.size(); ++i) y2[i] += static_cast<double>(residual.host[i]), dx2[i] += 0.5;
    expect_close(sum.host, y2, 2 * this->tolerance);
    expect_close(dx.host, dx2, this->tolerance);
    if (kind == ScaleKind::none) dw2.assign(columns, 0.0);
    expect_close(dw_of_sum.host, dw2, 100 * unit_roundoff<M>());
    for (double& g : dw2) g += 0.25;
    expect_close(dw.host, dw2, 100 * unit_roundoff<M>());
  }
}

template <class T>
void RmsNorm<T>::check_heads(index_t width, index_t leading, index_t first, const kernels::RowSegments& segments) {
  const index_t tokens = 12, heads = 3;
  const auto x = Array<T>::random(tokens * leading, 1);
  auto y = x;
  y = Array<T>::random(tokens * leading, 1);
  auto dx = Array<T>::random(tokens * leading, 2);
  const auto dy_copy = dx.host;
  const auto w = Array<M>::random(width, 3);
  Array<M> rstd(tokens * heads), dw(width),
      work(kernels::rms_norm_workspace_size(built_for, tokens * heads, width, segments.tokens * segments.heads));
  const MatrixRef<const T> source{x.data() + first, tokens, heads * width, leading};
  const MatrixRef<T> in_place{y.data() + first, tokens, heads * width, leading};
  const MatrixRef<T> gradient{dx.data() + first, tokens, heads * width, leading};
  kernels::head_rms_norm_forward<T>(this->device_, in_place, w.read(), eps, in_place, rstd.matrix(tokens, heads));
  kernels::head_rms_norm_backward<T>(this->device_, gradient, source, w.read(), rstd.read(tokens, heads), gradient,
                                     dw.vector(), work.vector(), segments);
  this->device_.fence();
  y.pull(), dx.pull(), dw.pull();
  std::vector<double> y2(x.host.begin(), x.host.end()), dx2(dy_copy.begin(), dy_copy.end()), dw2(width);
  for (index_t t = 0; t < tokens; ++t) {
    for (index_t h = 0; h < heads; ++h) {
      const index_t at = t * leading + first + h * width;
      double r = 0;
      kernels::reference::rms_norm_forward<T, M>({x.host.data() + at, 1, width}, w.host.data(), eps,
                                                 {y2.data() + at, 1, width}, &r);
      std::fill(dx2.begin() + at, dx2.begin() + at + width, 0.0);
      kernels::reference::rms_norm_backward<T, M>({dy_copy.data() + at, 1, width}, {x.host.data() + at, 1, width},
                                                  w.host.data(), &r, {dx2.data() + at, 1, width}, dw2.data());
    }
  }
  expect_close(y.host, y2, this->tolerance);
  expect_close(dx.host, dx2, this->tolerance);
  expect_close(dw.host, dw2, 100 * unit_roundoff<M>());
}

// Of multiples of 16 bytes, which a GPU keeps in registers, and of others.
TYPED_TEST(RmsNorm, HeadsOfAFusedBuffer) {
  for (const auto& segments : {kernels::RowSegments{1, 1}, kernels::RowSegments{4, 3}}) {
    this->check_heads(20, 75, 7, segments);
    this->check_heads(24, 80, 8, segments);
  }
}

// Of three heads in three segments, which are no node of the flat tree: the sums of each segment of tokens.
TYPED_TEST(RmsNorm, PartsOfHeadsAreSumsOfTheirTokens) {
  using T = TypeParam;
  using M = master_t<T>;
  const index_t tokens = 13, heads = 3, width = 20, columns = heads * width;
  const auto x = Array<T>::random(tokens * columns, 1), dy = Array<T>::random(tokens * columns, 2);
  const auto w = Array<M>::random(width, 3);
  const auto parts_of = [&](const Range& rows, const kernels::RowSegments& segments) {
    Array<T> dx(rows.size() * columns);
    Array<M> rstd(rows.size() * heads, 0.7),
        work(kernels::rms_norm_workspace_size(built_for, rows.size() * heads, width, segments.tokens * segments.heads));
    const auto from = [&](const Array<T>& a) {
      return MatrixRef<const T>{a.data() + rows.begin * columns, rows.size(), columns, columns};
    };
    const Matrix<M> parts = kernels::head_rms_norm_backward_parts<T>(
        this->device_, from(dy), from(x), w.read(), rstd.read(rows.size(), heads),
        MatrixRef<T>(dx.matrix(rows.size(), columns)), work.vector(), segments);
    EXPECT_EQ(parts.data(), work.data());
    work.pull();
    return std::vector<M>(work.host.begin(), work.host.begin() + segments.tokens * width);
  };
  std::vector<M> one_by_one;
  for (int s = 0; s < 4; ++s) {
    const std::vector<M> part = parts_of(shard_range(tokens, 4, s), {1, heads});
    one_by_one.insert(one_by_one.end(), part.begin(), part.end());
  }
  EXPECT_EQ(parts_of({0, tokens}, {4, heads}), one_by_one);

  Array<M> parts(4 * width), sum(width, 0.25);
  parts.host = one_by_one;
  parts.push();
  kernels::add_tree<M>(this->device_, MatrixRef<const M>(parts.read(4, width)), sum.vector());
  sum.pull();
  for (std::size_t c = 0; c < width; ++c) {
    const auto at = [&](std::size_t s) { return one_by_one[s * width + c]; };
    EXPECT_EQ(sum.host[c], M(0.25) + ((at(0) + at(1)) + (at(2) + at(3))));
  }
}

TEST(RmsNormReference, GradientIsTheFiniteDifference) {
  const index_t rows = 3, columns = 7;
  const auto x = Array<double>::random(rows * columns, 1);
  const auto dy = Array<double>::random(rows * columns, 2);
  const auto w = Array<double>::random(columns, 3);
  std::vector<double> y(x.host.size()), rstd(rows), dx(x.host.size()), dw(columns);
  const auto loss = [&](const std::vector<double>& at, const std::vector<double>& weights) {
    kernels::reference::rms_norm_forward<double, double>({at.data(), rows, columns}, weights.data(), eps,
                                                         matrix_of(y, rows, columns), rstd.data());
    return dot(y, dy.host);
  };
  loss(x.host, w.host);
  kernels::reference::rms_norm_backward<double, double>(dy.on_host(rows, columns), x.on_host(rows, columns),
                                                        w.host.data(), rstd.data(), matrix_of(dx, rows, columns),
                                                        dw.data());
  expect_close(dx, finite_difference(x.host, [&](const auto& at) { return loss(at, w.host); }), 1e-8);
  expect_close(dw, finite_difference(w.host, [&](const auto& at) { return loss(x.host, at); }), 1e-8);
}

}  // namespace
}  // namespace nanotron::test
