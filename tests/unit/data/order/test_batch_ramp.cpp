// ranks: 1
#include "nanotron/data/order/batch_ramp.hpp"

#include <gtest/gtest.h>

namespace nanotron::data {
namespace {

deck::DataConfig ramp(index_t first, index_t increment, index_t samples, index_t last) {
  deck::DataConfig data;
  data.global_batch_size = last;
  data.rampup_batch_size = first;
  data.rampup_increment = increment;
  data.rampup_samples = samples;
  return data;
}

TEST(BatchRamp, IsOneSizeWithoutARamp) {
  const BatchRamp none(ramp(0, 0, 0, 24));
  EXPECT_EQ(none.at(0), 24);
  EXPECT_EQ(none.after(7, 10), 247);
  EXPECT_EQ(none.sizes(), (std::vector<index_t>{24}));
  EXPECT_EQ(none.steps(), 0);
}

TEST(BatchRamp, GrowsInEqualIncrementsOverTheSamples) {
  const BatchRamp some(ramp(8, 4, 100, 24));  // 4 increments, one per 25 samples
  EXPECT_EQ(some.sizes(), (std::vector<index_t>{8, 12, 16, 20, 24}));
  for (const auto& [sample, size] :
       {std::pair<index_t, index_t>{0, 8}, {24, 8}, {25, 12}, {50, 16}, {75, 20}, {99, 20}, {100, 24}})
    EXPECT_EQ(some.at(sample), size) << sample;
}

// Step by step, and at once; with numbers of a large run too.
TEST(BatchRamp, SaysWhereARunIsAfterSoManySteps) {
  for (const auto& data : {ramp(8, 4, 100, 24), ramp(2, 2, 30, 8), ramp(1, 1, 7, 40), ramp(16, 48, 3000, 64)}) {
    const BatchRamp some(data);
    index_t sample = 0, steps = 0;
    for (index_t step = 0; step < 300; ++step) {
      ASSERT_EQ(some.after(0, step), sample);
      ASSERT_EQ(some.after(sample, 5), some.after(0, step + 5));
      steps += some.at(sample) < data.global_batch_size ? 1 : 0;
      sample += some.at(sample);
    }
    EXPECT_EQ(some.steps(), steps);
  }
  const BatchRamp large(ramp(1000, 1, 1'000'000'000'000'000, 1'000'000'000));
  EXPECT_EQ(large.at(999'999'999'999'999), 999'999'999);
  EXPECT_EQ(large.at(500'000'000'000'000), 500'000'500);
}

}  // namespace
}  // namespace nanotron::data
