// ranks: 1
// What a resume compares of data and deck: tests/integration/test_data_faults.py has runs of it.
#include "nanotron/trainer/data/run_data.hpp"

#include <gtest/gtest.h>

#include "nanotron/deck/config.hpp"
#include "support/world.hpp"
#include "unit/data/scratch.hpp"
#include "unit/data/token_file_maker.hpp"

namespace nanotron::trainer {
namespace {

using test::expect_error;
using test::Scratch;

class DataIdentity : public ::testing::Test {
 protected:
  DataIdentity() {
    config.data.path = "web=w.h5 code=c.h5";
    config.data.weights = "web=0.5 code=0.5";
    config.data.sequence_length = 16;
    info.deck = deck::canonical_deck(config);
    info.state.sample_cursor = 100;
    info.data = {{.use = "training", .name = "web", .tokens = 900, .content = "a", .sample = "s"},
                 {.use = "training", .name = "code", .tokens = 800, .content = "b", .sample = "t"},
                 {.use = "validation", .name = "", .tokens = 700, .content = "c", .sample = "u"}};
    here = info.data;
  }
  void expect_same() { EXPECT_NO_THROW(compare_data(info, here, config, "step_00000005", log)); }
  void expect_refused(ExitCode code, const std::string& words) {
    expect_error(code, words, [&] { compare_data(info, here, config, "step_00000005", log); });
    config.data.on_change = deck::OnChange::warn;
    expect_same();
    config.data.on_change = deck::OnChange::refuse;
  }

  deck::Config config;
  io::CheckpointInfo info;
  std::vector<io::DataFile> here;
  Log log{false};
};

TEST_F(DataIdentity, WhatMayChange) {
  expect_same();
  config.data.path = "code=elsewhere/c.h5 web=elsewhere/w.h5";  // the same names, in another order
  expect_same();
  config.data.global_batch_size *= 2;
  config.data.micro_batch_size *= 2;
  config.data.rampup_batch_size = 4;
  config.parallel.tp = 4;
  config.data.weights = "web=3 code=3";
  config.data.stages = "1600: web=1";  // from the cursor on
  expect_same();
}

TEST_F(DataIdentity, KeysThatOrderTheSamples) {
  config.run.seed += 1;
  expect_refused(ExitCode::deck_error, "run%seed is");
  config.data.shuffle = deck::Shuffle::none;
  info.deck = deck::canonical_deck(config);
  config.run.seed += 1;  // of the initial weights alone
  expect_same();
  config.data.sequence_length = 32;
  expect_refused(ExitCode::deck_error, "data%sequence_length is 32, was 16");
  info.state.sample_cursor = 0;
  expect_same();
}

TEST_F(DataIdentity, PlacesInTheFiles) {
  config.data.stages = "1500: web=1";  // 6 samples before the cursor, of which 3 were of code
  expect_refused(ExitCode::deck_error, "of the 100 samples so far 53 are now from 'web', 50 were before");
  config.data.stages = "";
  config.data.weights = "web=0.6 code=0.4";
  expect_refused(ExitCode::deck_error, "60 are now from 'web', 50 were before");
  config.data.path = "web=w.h5 books=c.h5";
  config.data.weights = "web=0.5 books=0.5";
  expect_refused(ExitCode::deck_error, "50 are now from 'books', 0 were before");
}

TEST_F(DataIdentity, ContentOfTheFiles) {
  here[1].content = "x";
  expect_refused(ExitCode::data_error, "the training file 'code' (data%path) has 800 tokens, content x, had");
  here[1].content = "";  // without hashes: by what both know
  expect_same();
  here[1].sample = "x";
  expect_refused(ExitCode::data_error, "sample x, had");
  here[1].sample = "";
  expect_same();
  here[1].tokens = 801;
  expect_refused(ExitCode::data_error, "801 tokens");
  here = info.data;
  here[2].content = "x";
  expect_refused(ExitCode::data_error, "the validation file (data%validation_path)");
  here.pop_back();  // sets of validation may come and go
  expect_same();
}

TEST_F(DataIdentity, AFileThatGaveNoSampleMayChange) {
  config.data.weights = "web=1 code=0";
  info.deck = deck::canonical_deck(config);
  here[1].content = "x";
  config.data.stages = "1600: code=1";
  expect_same();
  here[0].content = "x";
  expect_refused(ExitCode::data_error, "'web'");
}

TEST_F(DataIdentity, AnOlderCheckpointSaysLess) {
  info.data.clear();
  info.deck = "";
  config.run.seed += 1;
  expect_same();
}

TEST_F(DataIdentity, ASampleTellsFilesApart) {
  const Scratch scratch(test::world());
  test::make_token_file(scratch / "a.h5", 1000, 90);
  test::make_token_file(scratch / "same.h5", 1000, 90, H5T_STD_U32BE);
  test::make_token_file(scratch / "b.h5", 1000, 91);
  test::make_token_file(scratch / "long.h5", 70 * 4096, 90);
  const auto of = [&](const char* name) { return sample_hash(data::TokenFile(scratch / name)); };
  EXPECT_EQ(of("a.h5"), of("same.h5"));
  EXPECT_NE(of("a.h5"), of("b.h5"));
}

}  // namespace
}  // namespace nanotron::trainer
