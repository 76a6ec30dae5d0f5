// ranks: 1
#include "nanotron/data/order/training_stages.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "nanotron/data/batch_loader.hpp"
#include "nanotron/data/order/batch_ramp.hpp"
#include "support/world.hpp"
#include "unit/data/scratch.hpp"
#include "unit/data/token_file_maker.hpp"

namespace nanotron::data {
namespace {

deck::Config staged(const std::string& stages) {
  deck::Config c;
  c.data.path = "tokens.h5";
  c.data.sequence_length = 32;
  c.data.global_batch_size = 8;
  c.data.stages = stages;
  return c;
}

// "step sample token length batch cut" of each stage.
std::string shown(const deck::Config& run) {
  std::string text;
  for (const TrainingStage& s : training_stages(run)) {
    const deck::Config c = stage_config(run, s);
    text += fmt::format("{}{} {} {} {} {} {}", text.empty() ? "" : "; ", s.first_step, s.first_sample, s.first_token,
                        c.data.sequence_length, c.data.global_batch_size, c.data.cut.number);
  }
  return text;
}

TEST(TrainingStages, BeginWithTheFirstStepAfterTheirToken) {
  EXPECT_EQ(shown(staged("")), "0 0 0 32 8 0");
  EXPECT_EQ(shown(staged("1024: sequence_length=64 global_batch_size=4")), "0 0 0 32 8 0; 4 32 1024 64 4 1");
  EXPECT_EQ(shown(staged("1025: sequence_length=64 global_batch_size=4; 2000: sequence_length=128")),
            "0 0 0 32 8 0; 5 40 1280 64 4 1; 8 52 2048 128 4 2");
  EXPECT_EQ(shown(staged("1: sequence_length=64; 2: sequence_length=128; 3: sequence_length=32")),
            "0 0 0 32 8 0; 1 8 256 64 8 1; 1 8 256 128 8 2; 1 8 256 32 8 3");  // no step between them
}

TEST(TrainingStages, OfOneLengthAreOneCut) {
  EXPECT_EQ(
      shown(staged("256: global_batch_size=16; 768: rope_theta=2e4 sequence_length=32; 1280: sequence_length=16")),
      "0 0 0 32 8 0; 1 8 256 32 16 0; 2 24 768 32 16 0; 3 40 1280 16 16 1");
}

TEST(TrainingStages, KeepWhatEarlierOnesSet) {
  const deck::Config run = staged("256: rope_theta=2e4 recompute=full; 512: sequence_length=64");
  const std::vector<TrainingStage> stages = training_stages(run);
  const deck::Config last = stage_config(run, stages.at(2));
  EXPECT_EQ(last.model.rope_theta, 2e4);
  EXPECT_EQ(last.parallel.recompute, deck::Recompute::full);
  EXPECT_EQ(last.data.sequence_length, 64);
  EXPECT_EQ(&deck::whole_run(run), &run);
  EXPECT_EQ(deck::whole_run(last).data.sequence_length, 32);
  for (const auto& [sample, stage] : {std::pair{0, 0}, {7, 0}, {8, 1}, {15, 1}, {16, 2}, {99, 2}})
    EXPECT_EQ(stage_at(stages, sample), static_cast<std::size_t>(stage)) << sample;
}

TEST(TrainingStages, ComeAfterARamp) {
  deck::Config run = staged("4096: sequence_length=64");
  run.data.rampup_batch_size = 2;
  run.data.rampup_increment = 2;
  run.data.rampup_samples = 60;
  const BatchRamp ramp(run.data);
  const TrainingStage second = training_stages(run).at(1);
  EXPECT_EQ(second.first_sample, ramp.after(0, second.first_step));
  EXPECT_GE(second.first_sample, 128);
  EXPECT_LT(ramp.after(0, second.first_step - 1), 128);
  for (index_t end = 0; end < 200; ++end) {  // steps_until, one step after the other
    index_t sample = 6, steps = 0;
    for (; sample < end; sample += ramp.at(sample)) ++steps;
    EXPECT_EQ(ramp.steps_until(6, end), steps) << end;
  }
}

// A cut has every sequence of its length once in an epoch, in an order of its own.
TEST(TrainingStages, ACutBeginsAnEpochOfSequencesOfItsLength) {
  const test::Scratch scratch(test::world());
  std::vector<std::uint32_t> tokens(64 * 10 + 1);
  std::iota(tokens.begin(), tokens.end(), 0u);
  test::put(test::new_file(scratch / "tokens.h5").id(), "tokens", H5T_STD_U16LE, H5T_NATIVE_UINT32, tokens,
            {tokens.size()});
  const TokenFile file((scratch / "tokens.h5").string());
  deck::Config run =
      staged("512: sequence_length=64 global_batch_size=5; 1700: sequence_length=32; 4e3: sequence_length=64");
  run.data.path = (scratch / "tokens.h5").string();
  std::vector<std::vector<std::int32_t>> orders;
  for (const TrainingStage& stage : training_stages(run)) {
    const deck::Config c = stage_config(run, stage);
    BatchLoader loader(c.data, 7, file, Split::training, 0, 1);
    std::vector<std::int32_t> inputs(static_cast<std::size_t>(c.data.sequence_length)), targets(inputs.size()), firsts;
    for (index_t sample = 0; sample < loader.number_of_sequences(); ++sample) {
      const index_t batch = c.data.global_batch_size;
      loader.load(stage.first_sample + sample / batch * batch, sample % batch, inputs.data(), targets.data());
      firsts.push_back(inputs[0]);
    }
    EXPECT_EQ(std::set(firsts.begin(), firsts.end()).size(), firsts.size());
    for (const std::int32_t first : firsts) EXPECT_EQ(first % c.data.sequence_length, 0);
    orders.push_back(firsts);
  }
  ASSERT_EQ(orders.size(), 4u);
  EXPECT_EQ(orders[0].size(), orders[2].size());
  EXPECT_NE(orders[0], orders[2]);
  EXPECT_EQ(orders[1].size(), orders[3].size());
  EXPECT_NE(orders[1], orders[3]);
}

}  // namespace
}  // namespace nanotron::data
