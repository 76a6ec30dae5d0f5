// ranks: 1
#include "nanotron/data/order/blend.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>
#include <random>

namespace nanotron::data {
namespace {

using Parts = std::vector<BlendPart>;

double allowed(std::size_t files) { return std::bit_width(files - 1) / 2.0 + 1e-6; }

double share(const std::vector<double>& weights, std::size_t file) {
  return weights[file] / std::accumulate(weights.begin(), weights.end(), 0.0);
}

TEST(Blend, OneFileHasAllSamplesInTheirOrder) {
  const Blend blend(Parts{{0, {3.0}}});
  for (const index_t sample : {index_t{0}, index_t{17}, index_t{1} << 60}) {
    EXPECT_EQ(blend.at(sample).file, 0u);
    EXPECT_EQ(blend.at(sample).index, sample);
  }
}

// Each file's samples are 0, 1, 2, ... without gaps, and after every one the proportions are kept.
TEST(Blend, KeepsTheProportionsAfterEverySample) {
  std::mt19937_64 random(5);
  for (std::size_t files = 1; files <= 17; ++files) {
    std::vector<double> weights;
    for (std::size_t i = 0; i < files; ++i)
      weights.push_back(i % 4 == 3 ? 0.0 : std::ldexp(double(random() % 1000 + 1), int(random() % 12)));
    const Blend blend(Parts{{0, weights}});
    std::vector<index_t> counts(files);
    for (index_t sample = 0; sample < 4000; ++sample) {
      ASSERT_EQ(blend.counts_before(sample), counts);
      const Blend::Sample place = blend.at(sample);
      ASSERT_EQ(place.index, counts[place.file]++) << sample;
      for (std::size_t i = 0; i < files; ++i)
        ASSERT_LE(std::abs(double(counts[i]) - share(weights, i) * double(sample + 1)), allowed(files)) << sample;
    }
  }
}

// Far from the beginning too, where nothing was counted up: the proportions to half a sample or so of 10^15.
TEST(Blend, IsComputedFromTheIndexAlone) {
  const std::vector<double> weights{0.7, 0.05, 0.15, 0.02, 0.08};
  const Blend blend(Parts{{0, weights}});
  for (const index_t first : {index_t{10'000'000'000}, index_t{1'000'000'000'000'000}}) {
    std::vector<index_t> counts = blend.counts_before(first);
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), index_t{0}), first);
    for (std::size_t i = 0; i < 5; ++i)
      EXPECT_LE(std::abs(double(counts[i]) - share(weights, i) * double(first)), allowed(5) + 1e-15 * double(first));
    for (index_t sample = first; sample < first + 1000; ++sample) {
      const Blend::Sample place = blend.at(sample);
      ASSERT_EQ(place.index, counts[place.file]++);
    }
  }
}

// A file continues in the next stage where it was; one of weight 0 rests.
TEST(Blend, StagesGoOnWhereTheFilesAre) {
  const Blend blend(Parts{{0, {1, 0, 1}}, {1001, {0, 1, 3}}, {1001, {1, 1, 0}}, {2000, {0, 0, 1}}});
  std::vector<index_t> counts(3);
  for (index_t sample = 0; sample < 2100; ++sample) {
    ASSERT_EQ(blend.counts_before(sample), counts);
    const Blend::Sample place = blend.at(sample);
    ASSERT_EQ(place.index, counts[place.file]++);
    if (sample < 1001) {
      EXPECT_NE(place.file, 1u);
    } else {
      EXPECT_EQ(place.file == 2, sample >= 2000) << sample;  // the empty stage at 1001 takes nothing
    }
  }
  EXPECT_NEAR(double(counts[0]), 500.5 + 499.5, 2.0);
  EXPECT_NEAR(double(counts[1]), 499.5, 1.0);
}

TEST(Blend, StagesBeginAtTheFirstSampleAfterTheirToken) {
  deck::DataConfig data;
  data.path = "a=a.h5 b=b.h5";
  data.weights = "a=1 b=3";
  data.stages = "1000: b=1; 1024: a=1";
  data.sequence_length = 64;
  const std::vector<BlendPart> parts = blend_parts(data);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].weights, (std::vector<double>{1, 3}));
  EXPECT_EQ(parts[1].first_sample, 16);  // 1000 / 64 = 15.6
  EXPECT_EQ(parts[2].first_sample, 16);
}

TEST(Blend, FilesOfOneLengthAreInOrdersOfTheirOwn) {
  EXPECT_EQ(seed_of_file(1234, ""), 1234u);
  EXPECT_NE(seed_of_file(1234, "web"), 1234u);
  EXPECT_NE(seed_of_file(1234, "web"), seed_of_file(1234, "code"));
}

}  // namespace
}  // namespace nanotron::data
