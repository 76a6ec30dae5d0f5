// ranks: 1
#include <cstring>

#include "nanotron/kernels/reduction/content_hash.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

template <class M>
class ContentHash : public KernelTest<M> {
 protected:
  std::uint64_t hash(Array<M>& x) {
    x.push();
    return kernels::content_hash<M>(this->device_, x.read());
  }
};
using Masters = testing::Types<double, float, bf16>;
TYPED_TEST_SUITE(ContentHash, Masters);

template <class M>
void flip(M& value, int bit) {
  unsigned char bytes[sizeof(M)];
  std::memcpy(bytes, &value, sizeof(M));
  bytes[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
  std::memcpy(&value, bytes, sizeof(M));
}

TYPED_TEST(ContentHash, SeesEachBitAndEachPlace) {
  for (const index_t n : {1, 2, 31, 4096, 4097, 100003}) {
    auto x = Array<TypeParam>::random(n, 1);
    const std::uint64_t before = this->hash(x);
    EXPECT_EQ(this->hash(x), before);
    for (const index_t i : {index_t{0}, n / 2, n - 1}) {
      for (const int bit : {0, 7, static_cast<int>(8 * sizeof(TypeParam)) - 1}) {
        flip(x.host[i], bit);
        EXPECT_NE(this->hash(x), before) << "bit " << bit << " of element " << i;
        flip(x.host[i], bit);
      }
    }
    if (n == 1) continue;
    std::swap(x.host[0], x.host[n - 1]);
    EXPECT_NE(this->hash(x), before) << "two elements exchanged";
    std::swap(x.host[0], x.host[n - 1]);
    std::swap(x.host[0], x.host[1]);
    EXPECT_NE(this->hash(x), before) << "two of a word exchanged";
  }
}

TYPED_TEST(ContentHash, TellsZeroFromMinusZeroAndFromNothing) {
  Array<TypeParam> x(3);
  const std::uint64_t zeros = this->hash(x);
  flip(x.host[1], static_cast<int>(8 * sizeof(TypeParam)) - 1);
  EXPECT_NE(this->hash(x), zeros);
  for (const index_t n : {0, 1, 2, 4, 5, 6, 7, 8}) {
    Array<TypeParam> other(n);
    EXPECT_NE(this->hash(other), zeros) << n << " zeros, not 3";
  }
}

// Ranks whose shards differ in size have the same elements at other addresses.
TYPED_TEST(ContentHash, IsTheSameAtAnyAddress) {
  constexpr index_t n = 1003;
  auto x = Array<TypeParam>::random(n, 2);
  const std::uint64_t expected = this->hash(x);
  for (const index_t begin : {1, 2, 3}) {
    Array<TypeParam> longer(begin + n);
    for (index_t i = 0; i < n; ++i) longer.host[begin + i] = x.host[i];
    longer.push();
    const Vector<const TypeParam> moved(longer.read().data() + begin, n);
    EXPECT_EQ(kernels::content_hash<TypeParam>(this->device_, moved), expected) << begin;
  }
}

}  // namespace
}  // namespace nanotron::test
