// ranks: 1
// The weighted bias of an expert's down projection against plain loops, its gradients against finite differences.
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/moe/expert_bias.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

template <class T>
class ExpertBiasKernels : public KernelTest<T> {};
TYPED_TEST_SUITE(ExpertBiasKernels, ScalarTypes);

template <class U>
std::vector<double> wide(const Array<U>& a) {
  return {a.host.begin(), a.host.end()};
}

// loss = sum of dy y with y = x + w b.
TYPED_TEST(ExpertBiasKernels, FollowPlainLoopsAndFiniteDifferences) {
  using T = TypeParam;
  using M = master_t<T>;
  const index_t rows = 5, columns = 21;
  auto y = Array<T>::random(rows * columns, 1);
  const auto x = y;
  const auto weights = Array<M>::random(rows, 2), bias = Array<M>::random(columns, 3);
  const auto dy = Array<T>::random(rows * columns, 4);
  Array<M> dweights(rows, M(0)), dbias(columns, M(0)),
      workspace(kernels::bias_workspace_size(built_for, rows, columns));
  Array<T> scaled(rows * columns);
  kernels::add_weighted_bias<T>(this->device_, weights.read(), bias.read(), y.matrix(rows, columns));
  kernels::add_bias_dots<T>(this->device_, dy.read(rows, columns), bias.read(), dweights.vector());
  kernels::scale_rows<T>(this->device_, dy.read(rows, columns), weights.read(), scaled.matrix(rows, columns));
  kernels::bias_backward<T>(this->device_, scaled.read(rows, columns), dbias.vector(), workspace.vector());
  this->device_.fence();
  y.pull(), dweights.pull(), dbias.pull();

  const std::vector<double> at_x = wide(x), g = wide(dy);
  const auto result = [&](const std::vector<double>& w, const std::vector<double>& b) {
    std::vector<double> sum = at_x;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += w[i / b.size()] * b[i % b.size()];
    return sum;
  };
  const std::vector<double> w = wide(weights), b = wide(bias);
  const double tolerance = 4 * unit_roundoff<T>();
  expect_close(y.host, result(w, b), tolerance, 2.0);
  const auto loss = [&](const std::vector<double>& at) { return dot(at, g); };
  expect_close(dweights.host, finite_difference(w, [&](const auto& at) { return loss(result(at, b)); }),
               columns * 4 * unit_roundoff<M>() + 1e-8, 4.0);
  expect_close(dbias.host, finite_difference(b, [&](const auto& at) { return loss(result(w, at)); }),
               rows * tolerance + 1e-8, 4.0);
}

}  // namespace
}  // namespace nanotron::test
