// ranks: 1
#include "unit/kernels/kernel_test.hpp"
#include "support/reference/rotary.hpp"
#include "nanotron/kernels/attention/rotary.hpp"

namespace nanotron::test {
namespace {

template <class T>
class Rotary : public KernelTest<T> {};
TYPED_TEST_SUITE(Rotary, ScalarTypes);

TYPED_TEST(Rotary, FollowsTheTwinAndTurnsBack) {
  using T = TypeParam;
  using M = master_t<T>;
  const double theta = 10000.0;
  const index_t tokens = 9, heads = 3, width = 20, leading = 71, positions = 600;
  Array<M> cosine(positions * width / 2), sine(positions * width / 2);
  kernels::rotary_tables<M>(this->device_, theta, cosine.matrix(positions, width / 2),
                            sine.matrix(positions, width / 2));
  Array<std::int32_t> at(tokens);
  for (index_t t = 0; t < tokens; ++t) at.host[t] = static_cast<std::int32_t>(t * 74);
  at.push();
  auto x = Array<T>::random(tokens * leading, 1);
  const auto start = x.host;
  const MatrixRef<T> columns{x.data() + 5, tokens, heads * width, leading};
  kernels::rotary_forward<T>(this->device_, columns, at.read(), cosine.read(positions, width / 2),
                             sine.read(positions, width / 2));
  this->device_.fence();
  x.pull();
  std::vector<double> expected(start.begin(), start.end());
  kernels::reference::rotary({expected.data() + 5, tokens, heads * width, leading}, width,
                             at.host.data(), theta, 1.0);
  // The tables are rounded once to M, two products and a sum follow, then one rounding to T.
  const double tolerance = 4 * unit_roundoff<M>() + unit_roundoff<T>();
  expect_close(x.host, expected, tolerance + 1e-13);  // 1e-13: cos of an angle of several hundred
  kernels::rotary_backward<T>(this->device_, columns, at.read(), cosine.read(positions, width / 2),
                              sine.read(positions, width / 2));
  this->device_.fence();
  x.pull();
  expect_close(x.host, std::vector<double>(start.begin(), start.end()), 4 * tolerance);
}

}  // namespace
}  // namespace nanotron::test
