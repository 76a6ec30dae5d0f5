// ranks: 1
// The random mask: a pure function of its arguments, with the mean and the independence that dropout needs; on rows.

#include "nanotron/kernels/dropout/random_mask.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

using kernels::MaskRow;
using kernels::MaskSite;
using kernels::RandomMask;

RandomMask mask_of(double rate, MaskSite site = MaskSite::attention, index_t layer = 3, std::uint64_t seed = 11,
                   index_t first = 100) {
  RandomMask mask = kernels::random_mask(rate, site, layer, seed);
  mask.samples = {.first = first};
  return mask;
}

// 64 rows of 4096 elements, as 0 and 1; rows are positions, or heads.
std::vector<double> dropped(const RandomMask& mask, index_t sequence = 0, index_t first_position = 0,
                            index_t head = 0) {
  std::vector<double> values;
  for (index_t i = 0; i < 64; ++i) {
    const MaskRow row = mask.row(sequence, first_position + i, head);
    for (index_t c = 0; c < 4096; ++c) values.push_back(mask.keeps(row, c) ? 0.0 : 1.0);
  }
  return values;
}

double mean(const std::vector<double>& x) {
  double sum = 0.0;
  for (const double value : x) sum += value;
  return sum / static_cast<double>(x.size());
}

// In standard deviations of what independent numbers have.
double correlation(const std::vector<double>& a, const std::vector<double>& b, double rate) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - rate) * (b[i] - rate);
  return sum / (rate * (1.0 - rate) * std::sqrt(static_cast<double>(a.size())));
}

TEST(RandomMask, DropsItsShareEverywhere) {
  for (const double rate : {0.001, 0.1, 0.5, 0.9}) {
    const double deviation = std::sqrt(rate * (1.0 - rate));
    const std::vector<double> all = dropped(mask_of(rate));
    EXPECT_LT(std::abs(mean(all) - rate), 4.0 * deviation / 512.0) << rate;
    double most = 0.0, squares = 0.0;  // over the rows
    for (index_t row = 0; row < 64; ++row) {
      const std::vector<double> of_row(all.begin() + row * 4096, all.begin() + (row + 1) * 4096);
      const double off = (mean(of_row) - rate) * 64.0 / deviation;
      most = larger(most, std::abs(off)), squares += off * off;
    }
    EXPECT_LT(most, 5.0) << rate;
    EXPECT_LT(std::abs(squares / 64.0 - 1.0), 4.0 * std::sqrt(2.0 / 64.0)) << rate;  // chi squared
  }
}

TEST(RandomMask, NeighboursAreIndependent) {
  const double rate = 0.3;
  const RandomMask mask = mask_of(rate);
  const std::vector<double> all = dropped(mask);
  const auto expect_independent = [&](const std::vector<double>& other, const char* what) {
    EXPECT_LT(std::abs(correlation(all, other, rate)), 4.5) << what;
  };
  for (const std::ptrdiff_t distance : {1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512, 1024}) {
    std::vector<double> shifted(all.begin() + distance, all.end());
    shifted.insert(shifted.end(), all.begin(), all.begin() + distance);
    expect_independent(shifted, "elements");
  }
  expect_independent(dropped(mask, 0, 1), "positions");
  expect_independent(dropped(mask, 0, 64), "later positions");
  expect_independent(dropped(mask, 1), "samples");
  expect_independent(dropped(mask, 0, 0, 1), "heads");
  expect_independent(dropped(mask_of(rate, MaskSite::feed_forward)), "sites");
  expect_independent(dropped(mask_of(rate, MaskSite::attention, 4)), "layers");
  expect_independent(dropped(mask_of(rate, MaskSite::attention, 3, 12)), "seeds");
  expect_independent(dropped(mask_of(rate, MaskSite::attention, 3, 11ull + (1ull << 32))), "seeds of 64 bits");
  expect_independent(dropped(mask_of(rate, MaskSite::attention, 3, 11, 100 + (index_t{1} << 32))), "late samples");
}

// Pairs of neighbours in a row, and bits of a byte: each pattern as often as independent elements have it.
TEST(RandomMask, PatternsOfNeighboursAreEven) {
  const RandomMask mask = mask_of(0.5);
  std::vector<double> count(256, 0.0);
  const std::vector<double> all = dropped(mask);
  for (std::size_t i = 0; i < all.size(); i += 8) {
    std::size_t pattern = 0;
    for (std::size_t bit = 0; bit < 8; ++bit) pattern = 2 * pattern + (all[i + bit] > 0.0 ? 1 : 0);
    ++count[pattern];
  }
  const double expected = static_cast<double>(all.size()) / 8.0 / 256.0;
  double chi_squared = 0.0;
  for (const double n : count) chi_squared += (n - expected) * (n - expected) / expected;
  EXPECT_LT(std::abs(chi_squared - 255.0), 4.5 * std::sqrt(2.0 * 255.0));
}

// As tests/golden/make_family_golden.py computes it; and the sample that a rank's sequence is.
TEST(RandomMask, IsThisFunction) {
  const RandomMask mask = mask_of(0.25, MaskSite::probabilities, 5, 0x123456789abcdefull, 77);
  std::string kept;
  for (index_t i = 0; i < 4; ++i) {
    const MaskRow row = mask.row(1, 1000 * i, i);
    for (index_t c = 0; c < 16; ++c) kept += mask.keeps(row, 37 * c) ? '1' : '0';
  }
  EXPECT_EQ(kept, "0111110100101101101101111110110111001010101111000010111111011111");
  RandomMask off = mask;
  off.samples = {};
  EXPECT_FALSE(off.is_on());
  EXPECT_EQ(off.factor(), 1.0);
  EXPECT_FALSE(mask_of(0.0).is_on());
  EXPECT_DOUBLE_EQ(mask_of(0.1).factor(), 1.0 / (1.0 - std::floor(0.1 * 0x1.0p32) * 0x1.0p-32));

  // 12 samples from 24 on, two ranks that take two in turn: the second has 26, 27, 30, 31, 34, 35.
  const SampleNumbers of_rank{.first = 24, .at_once = 2, .shards = 2, .shard = 1};
  EXPECT_EQ(of_rank.of(0), 26);
  EXPECT_EQ(of_rank.of(3), 31);
  EXPECT_EQ(of_rank.from(4).of(1), 35);
}

template <class T>
class MaskedRows : public KernelTest<T> {};
TYPED_TEST_SUITE(MaskedRows, ScalarTypes);

// Rows 5 ... of two sequences with two pieces of their positions here.
TYPED_TEST(MaskedRows, MeetThePlainLoop) {
  using T = TypeParam;
  const index_t rows = 33, columns = 131;
  const double factor = 0.22;
  const kernels::TokenRows tokens{5, {{10, 20}, {90, 100}}};
  const RandomMask mask = mask_of(0.4);
  const auto x = Array<T>::random(rows * columns, 1), z = Array<T>::random(rows * columns, 2);
  Array<T> sum(x.size()), product(x.size());
  std::vector<double> sum2, product2;
  for (index_t r = 0; r < rows; ++r) {
    const index_t token = 5 + r, i = token % 20;
    const MaskRow row = mask.row(token / 20, i < 10 ? 10 + i : 80 + i);
    for (index_t c = 0; c < columns; ++c) {
      const auto at = static_cast<std::size_t>(r * columns + c);
      product2.push_back(mask.keeps(row, c) ? factor * mask.factor() * static_cast<double>(x.host[at]) : 0.0);
      sum2.push_back(product2.back() + static_cast<double>(z.host[at]));
    }
  }
  kernels::add_masked<T>(this->device_, mask, tokens, factor, x.read(rows, columns), z.read(rows, columns),
                         sum.matrix(rows, columns));
  kernels::scale_masked<T>(this->device_, mask, tokens, factor, x.read(rows, columns), product.matrix(rows, columns));
  this->device_.fence();
  sum.pull(), product.pull();
  const double tolerance = 3 * unit_roundoff<master_t<T>>() + unit_roundoff<T>();
  expect_close(sum.host, sum2, tolerance);
  expect_close(product.host, product2, tolerance);
}

}  // namespace
}  // namespace nanotron::test
