// ranks: 1
#include "nanotron/kernels/optim/qk_clip.hpp"

#include "nanotron/tensor/shard.hpp"
#include "support/reference/qk_clip.hpp"
#include "unit/kernels/kernel_test.hpp"
#include "unit/kernels/optim/scalars.hpp"

namespace nanotron::test {
namespace {

using kernels::HeadRows;

template <class M>
class QkClip : public KernelTest<M> {};
using MasterTypes = ::testing::Types<double, float>;
TYPED_TEST_SUITE(QkClip, MasterTypes);

// Queries of three heads for each key, keys, and those of latent attention with their rests.
const HeadRows projections[] = {{.columns = 7, .rows = 4, .heads_per_gamma = 3, .balanced = 4},
                                {.columns = 7, .rows = 4, .heads_per_gamma = 1, .balanced = 4},
                                {.columns = 5, .rows = 6, .balanced = 4, .rest = HeadRows::Rest::gamma},
                                {.columns = 5, .rows = 9, .balanced = 4, .rest = HeadRows::Rest::one}};
constexpr index_t key_heads = 4, group = 3;

Array<double> maxima_of_layers() {
  Array<double> maxima(2 * key_heads * group, -1.0);
  maxima.host[1] = 3.0, maxima.host[2] = 5.0, maxima.host[4] = 2.0, maxima.host[12] = 2.5, maxima.host[23] = 9.0;
  maxima.push();
  return maxima;
}

TYPED_TEST(QkClip, FactorsAreOfTheLargestScoreOfAGroup) {
  const Array<double> maxima = maxima_of_layers();
  Array<double> gamma(2 * key_heads);
  kernels::clip_factors(this->device_, 2.0, maxima.read(2, key_heads * group), gamma.matrix(2, key_heads));
  this->device_.fence();
  gamma.pull();
  EXPECT_EQ(gamma.host, kernels::reference::clip_factors(2.0, maxima.host, 2 * key_heads));
  EXPECT_EQ(gamma.host, (std::vector<double>{2.0 / 5.0, 1.0, 1.0, 1.0, 2.0 / 2.5, 1.0, 1.0, 2.0 / 9.0}));
}

// In one part, and in two that cut a head.
TYPED_TEST(QkClip, FollowsTheReferenceInAnyPart) {
  using M = TypeParam;
  const std::vector<double> factors{0.4, 1.0, 0.7, 0.01};
  Array<double> gamma(key_heads);
  gamma.host = factors;
  gamma.push();
  for (const HeadRows& heads : projections) {
    const index_t size = key_heads * heads.heads_per_gamma * heads.rows * heads.columns;
    for (const index_t cut : {index_t{0}, size / 2 + 3}) {
      auto p = Array<M>::random(size, 5);
      std::vector<double> expected(p.host.begin(), p.host.end());
      Array<bf16> copy(size);
      for (const Range part : {Range{0, cut}, Range{cut, size}}) {
        if (part.size() == 0) continue;
        kernels::clip_rows<M>(this->device_, Vector<M>(p.data() + part.begin, part.size()), part.begin, heads,
                              gamma.read(), Scalars::scaled(1.0).read(),
                              Vector<bf16>(copy.data() + part.begin, part.size()));
      }
      this->device_.fence();
      kernels::reference::clip_rows(expected, heads, factors);
      const std::vector<M> before = p.host;
      p.pull(), copy.pull();
      expect_close(p.host, expected, 4 * unit_roundoff<M>());
      for (std::size_t i = 0; i < p.host.size(); ++i) {
        const float now = static_cast<float>(p.host[i]);
        ASSERT_EQ(copy.host[i].bits, (p.host[i] == before[i] ? bf16(0.0f) : bf16(now)).bits) << i;
      }
    }
  }
}

TYPED_TEST(QkClip, OfASkippedUpdateChangesNothing) {
  using M = TypeParam;
  const Array<double> gamma(key_heads, 0.5);
  const auto p = Array<M>::random(key_heads * 4 * 7, 5);
  const Array<bf16> copy(p.size());
  kernels::clip_rows<M>(this->device_, p.vector(), 0, projections[1], gamma.read(), Scalars::skipped().read(),
                        copy.vector());
  this->device_.fence();
  EXPECT_TRUE(is_unchanged(p) && is_unchanged(copy));
}

}  // namespace
}  // namespace nanotron::test
