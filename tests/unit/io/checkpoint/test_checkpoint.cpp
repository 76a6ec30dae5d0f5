// ranks: 1 2 4
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "nanotron/io/checkpoint/checkpoint_reader.hpp"
#include "nanotron/io/checkpoint/checkpoint_writer.hpp"
#include "support/file_size_limit.hpp"
#include "support/test_folder.hpp"
#include "support/world.hpp"
#include "unit/data/scratch.hpp"
#include "unit/io/checkpoint_fixture.hpp"

namespace nanotron::io {
namespace {

using test::expect_error;
using test::FileSizeLimit;

TEST_F(Checkpoint, IsReadBackOnEveryGrid) {
  save<float>(7, 40);
  save<double>(8, 50);
  for (int ranks = 1; ranks <= size; ++ranks) {
    EXPECT_EQ(wrong_on<float>(ranks, 7, 40), 0) << ranks << " ranks";
    EXPECT_EQ(wrong_on<double>(ranks, 8, 50), 0) << ranks << " ranks";
    EXPECT_EQ(wrong_on<double>(ranks, 7, 40), 0) << ranks << " ranks, float to double";
    EXPECT_EQ(wrong_on<float>(ranks, 8, 50), 0) << ranks << " ranks, double to float";
  }
}

TEST_F(Checkpoint, KeepsTheCountersModelAndTexts) {
  save<float>(100, 1);
  const auto reader = CheckpointReader::find(world, scratch.path(), "auto", log);
  ASSERT_TRUE(reader.has_value());
  const CheckpointInfo& info = reader->info();
  EXPECT_EQ(reader->folder(), scratch / "step_00000100");
  EXPECT_EQ(info.state.step, 100);
  EXPECT_EQ(info.state.tokens_seen, 10000);
  EXPECT_EQ(info.state.sample_cursor, 800);
  EXPECT_EQ(info.state.seed, 1234);
  EXPECT_EQ(info.state.adam_step, 100);
  EXPECT_EQ(info.master, ScalarType::fp32);
  EXPECT_TRUE(info.has_optimizer);
  EXPECT_EQ(info.deck, "&run\n/\n");
  EXPECT_EQ(info.hugging_face, "{\"config\": {}}");
  EXPECT_NO_THROW(reader->require_model(test::fake_config()));
  auto other = test::fake_config();
  other.hidden_size = 9;
  other.qk_norm = true;
  expect_error(ExitCode::deck_error, "model%hidden_size: the deck says 9, the checkpoint 8",
               [&] { reader->require_model(other); });
  expect_error(ExitCode::deck_error, "qk_norm", [&] { reader->require_model(other); });
}

TEST_F(Checkpoint, TheFileDoesNotShowTheGrid) {
  save<float>(5, 3);
  MPI_Comm alone;
  MPI_Comm_split(world, rank, 0, &alone);
  if (rank == 0) {
    FakeState<float> state(0, 1);
    state.fill(3);
    CheckpointWriter(alone, scratch / "alone", 0, log).write(state.contents(5));
    EXPECT_EQ(test::read_bytes(scratch / "alone/step_00000005/checkpoint.h5"),
              test::read_bytes(scratch / "step_00000005/checkpoint.h5"));
    EXPECT_EQ(test::read_bytes(scratch / "alone/step_00000005/manifest.json"),
              test::read_bytes(scratch / "step_00000005/manifest.json"));
  }
  MPI_Comm_free(&alone);
  MPI_Barrier(world);
}

// What start() was given may change after finish_copy().
TEST_F(Checkpoint, WithoutWaitingForTheDiskHasTheSameBytes) {
  CheckpointWriter writer(world, scratch / "later", 0, log);
  EXPECT_FALSE(writer.advance());
  for (const std::int64_t step : {1, 2, 3}) {
    FakeState<float> state(rank, size);
    state.fill(static_cast<int>(step));
    writer.start(state.contents(step));
    writer.finish_copy();
    state.fill(99);
    if (step == 1) {
      while (!writer.advance()) {
      }
      EXPECT_FALSE(writer.advance());
    }
    if (step == 2) continue;  // the next start() finishes it
    writer.finish();
  }
  for (const std::int64_t step : {1, 2, 3}) {
    CheckpointWriter now(world, scratch / "now", 0, log);
    FakeState<float> state(rank, size);
    state.fill(static_cast<int>(step));
    now.write(state.contents(step));
    for (const char* file : {checkpoint_file_name, manifest_file_name}) {
      EXPECT_EQ(test::read_bytes(step_folder(scratch / "now", step) / file),
                test::read_bytes(step_folder(scratch / "later", step) / file));
    }
    MPI_Barrier(world);
  }
}

TEST_F(Checkpoint, WithoutWaitingForTheDiskFailsOnAllRanks) {
  CheckpointWriter writer(world, scratch.path(), 0, log);
  save<float>(writer, 5, 1);
  FakeState<float> state(rank, size, 40);  // several blocks
  state.fill(2);
  writer.start(state.contents(6));
  {
    const fs::path file = scratch / "step_00000006.partial/checkpoint.h5";
    if (rank == 0) fs::remove(file);  // nothing to read back
    test::expect_error(ExitCode::system_error, "step_00000006.partial", [&] { writer.finish(); });
  }
  EXPECT_FALSE(writer.finish());
  MPI_Barrier(world);  // until rank 0 has removed it
  EXPECT_FALSE(fs::exists(scratch / "step_00000006.partial"));
  EXPECT_EQ(folders(), std::vector<std::string>{"step_00000005"});
  save<float>(writer, 7, 1);
  EXPECT_EQ(folders().size(), 2u);
}

TEST_F(Checkpoint, KeepsTheLastProvenOnesAndTheNewest) {
  CheckpointWriter writer(world, scratch.path(), 2, log);
  writer.start_fresh();
  EXPECT_TRUE(writer.newest_known_good().empty());
  for (const std::int64_t step : {10, 20, 30, 40}) {
    save<float>(writer, step, 1);
    writer.mark_known_good();
    writer.mark_known_good();  // nothing new: no change
  }
  save<float>(writer, 50, 1);
  EXPECT_EQ(folders(), (std::vector<std::string>{"step_00000030", "step_00000040", "step_00000050"}));
  EXPECT_EQ(fs::read_symlink(scratch / "latest"), "step_00000050");
  EXPECT_EQ(writer.newest_known_good(), scratch / "step_00000040");
  save<float>(writer, 60, 1);  // no finite step since 40
  EXPECT_EQ(folders().size(), 4u);
  writer.mark_known_good();
  EXPECT_EQ(folders(), (std::vector<std::string>{"step_00000050", "step_00000060"}));
  EXPECT_EQ(writer.newest_known_good(), scratch / "step_00000060");
}

TEST_F(Checkpoint, TheOneResumedFromIsProvenByTheNextStep) {
  for (const std::int64_t step : {10, 20, 30}) save<float>(step, 1);
  if (rank == 0) fs::remove(scratch / "step_00000010/manifest.json");
  MPI_Barrier(world);
  CheckpointWriter writer(world, scratch.path(), 1, log);
  writer.continue_from(scratch / "step_00000030", 30);
  EXPECT_EQ(writer.newest_known_good(), scratch / "step_00000020");
  writer.mark_known_good();
  EXPECT_EQ(writer.newest_known_good(), scratch / "step_00000030");
  EXPECT_EQ(folders(), std::vector<std::string>{"step_00000030"});
}

// A second bad step right after training went back: not to an older one.
TEST_F(Checkpoint, TheOneGoneBackToIsStillKnownGood) {
  CheckpointWriter writer(world, scratch.path(), 2, log);
  writer.start_fresh();
  for (const std::int64_t step : {10, 20}) {
    save<float>(writer, step, 1);
    writer.mark_known_good();
  }
  writer.continue_from(scratch / "step_00000020", 20);
  EXPECT_EQ(writer.newest_known_good(), scratch / "step_00000020");
  CheckpointWriter next(world, scratch.path(), 2, log);
  next.continue_from(scratch / "step_00000020", 20);
  EXPECT_EQ(next.newest_known_good(), scratch / "step_00000020");
}

// The run continues from copies of the state: the checkpoint before them may hold weights that had diverged.
TEST_F(Checkpoint, TheOneBeforeCopiesIsKnownGoodIfItWas) {
  for (const std::int64_t kept : {2, 0}) {
    const fs::path directory = scratch / fmt::format("keep_last_{}", kept);
    CheckpointWriter writer(world, directory, kept, log);
    writer.start_fresh();
    for (const std::int64_t step : {10, 20}) {
      save<float>(writer, step, 1);
      writer.mark_known_good();
    }
    save<float>(writer, 30, 1);
    CheckpointWriter next(world, directory, kept, log);
    next.continue_at(30);
    EXPECT_EQ(next.newest_known_good(), directory / "step_00000020");
    next.mark_known_good();
    EXPECT_EQ(next.newest_known_good(), directory / "step_00000030");
    MPI_Barrier(world);
    CheckpointWriter last(world, directory, kept, log);
    last.continue_at(35);
    EXPECT_EQ(last.newest_known_good(), directory / "step_00000030");
  }
}

// Jobs of a chain that write one checkpoint each.
TEST_F(Checkpoint, KeepsAsManyOverManyStarts) {
  for (std::int64_t step = 10; step <= 60; step += 10) {
    CheckpointWriter writer(world, scratch.path(), 2, log);
    if (step == 10) {
      writer.start_fresh();
    } else {
      writer.continue_from(step_folder(scratch.path(), step - 10), step - 10);
    }
    if (step == 50 && rank == 0) {  // one that was lost counts no more
      fs::remove_all(scratch / "step_00000030");
      std::ofstream(scratch / "known_good") << "no steps";
    }
    writer.mark_known_good();
    save<float>(writer, step, 1);
  }
  EXPECT_EQ(folders(), (std::vector<std::string>{"step_00000040", "step_00000050", "step_00000060"}));
  if (rank == 0) {
    const std::vector<char> found = test::read_bytes(scratch / "known_good");
    EXPECT_EQ(std::string(found.begin(), found.end()), "40\n50\n");
    fs::remove(scratch / "known_good");
    fs::create_symlink("/dev/zero", scratch / "known_good");
  }
  MPI_Barrier(world);
  CheckpointWriter writer(world, scratch.path(), 2, log);
  writer.continue_from(scratch / "step_00000060", 60);
  writer.mark_known_good();
  EXPECT_EQ(folders().size(), 3u);  // none is known but the one it came from
}

// As if it had been written at once: by the step after it, and only when it is on the disk.
TEST_F(Checkpoint, OneThatIsStillWrittenIsKnownGoodWhenItIsPublished) {
  FakeState<float> state(rank, size);
  state.fill(2);
  CheckpointWriter writer(world, scratch.path(), 1, log);
  save<float>(writer, 10, 1);
  writer.mark_known_good();
  writer.start(state.contents(20));
  writer.finish_copy();
  writer.mark_known_good();
  EXPECT_TRUE(fs::exists(scratch / "step_00000010/manifest.json"));
  writer.finish();
  EXPECT_EQ(folders(), std::vector<std::string>{"step_00000020"});
  writer.start(state.contents(30));  // no step followed
  writer.finish();
  EXPECT_EQ(writer.newest_known_good(), scratch / "step_00000020");
}

// Training goes back in the middle of a run: what came after is no reason to remove what it went back to.
TEST_F(Checkpoint, TheOneGoneBackToStays) {
  CheckpointWriter writer(world, scratch.path(), 2, log);
  writer.start_fresh();
  for (const std::int64_t step : {10, 20, 30}) {
    save<float>(writer, step, 1);
    if (step < 30) writer.mark_known_good();
  }
  writer.continue_from(scratch / "step_00000020", 20);
  writer.mark_known_good();
  EXPECT_EQ(folders(), (std::vector<std::string>{"step_00000010", "step_00000020"}));
  save<float>(writer, 30, 1);
  writer.mark_known_good();
  EXPECT_EQ(folders(), (std::vector<std::string>{"step_00000020", "step_00000030"}));
}

TEST_F(Checkpoint, OneThatIsGivenUpLeavesTheOthersAlone) {
  save<float>(5, 1);
  {
    CheckpointWriter writer(world, scratch.path(), 0, log);
    FakeState<float> state(rank, size, 40);
    state.fill(2);
    writer.start(state.contents(6));
    writer.finish_copy();
  }
  {
    FakeState<float> state(rank, size, 40);
    CheckpointWriter writer(world, scratch.path(), 0, log);
    writer.start(state.contents(6));  // its copy is not waited for either
  }
  EXPECT_EQ(folders(), std::vector<std::string>{"step_00000005"});
  save<float>(7, 3);
  EXPECT_EQ(wrong_on<float>(size, 7, 3), 0);
}

TEST_F(Checkpoint, ADamagedOneNeverCountsAmongTheLastOnes) {
  save<float>(5, 1);
  save<float>(10, 1);
  if (rank == 0) fs::resize_file(scratch / "step_00000010/checkpoint.h5", 1000);
  MPI_Barrier(world);
  CheckpointWriter writer(world, scratch.path(), 2, log);
  writer.continue_from(scratch / "step_00000005", 5);
  save<float>(writer, 12, 2);
  writer.mark_known_good();
  EXPECT_EQ(folders(), (std::vector<std::string>{"step_00000005", "step_00000012"}));
}

TEST_F(Checkpoint, RemovesItsOwnHalfWrittenFoldersOnly) {
  const std::vector<std::string> ours{"step_00000003.partial", "step_00000004.replaced.partial"};
  const std::vector<std::string> others{"step_of_mine.partial", "notes.partial", "step_12.partial"};
  if (rank == 0) {
    for (const std::string& name : ours) fs::create_directories(scratch / name);
    for (const std::string& name : others) fs::create_directories(scratch / name);
  }
  MPI_Barrier(world);
  save<float>(5, 1);
  for (const std::string& name : ours) EXPECT_FALSE(fs::exists(scratch / name)) << name;
  for (const std::string& name : others) EXPECT_TRUE(fs::exists(scratch / name)) << name;
}

TEST_F(Checkpoint, OfAnotherHistoryAreSetAside) {
  const fs::path directory = scratch / "checkpoints/";  // the slash is of no meaning
  const fs::path aside = scratch / "checkpoints.superseded-1";
  for (const std::int64_t step : {10, 20, 30}) save<float>(directory, step);
  CheckpointWriter writer(world, directory, 2, log);
  writer.continue_from(directory / "step_00000010", 10);
  EXPECT_EQ(folders(directory), std::vector<std::string>{"step_00000010"});
  EXPECT_EQ(folders(aside), (std::vector<std::string>{"step_00000020", "step_00000030"}));
}

TEST_F(Checkpoint, BranchingOffLosesNothing) {
  const fs::path here = scratch / "here", elsewhere = scratch / "elsewhere";
  for (const std::int64_t step : {4, 6, 50}) save<float>(here, step);
  save<float>(elsewhere, 20);
  CheckpointWriter writer(world, here, 1, log);
  writer.continue_from(elsewhere / "step_00000020", 20);
  EXPECT_EQ(folders(scratch / "here.superseded-1").size(), 3u);
  writer.mark_known_good();
  EXPECT_EQ(writer.newest_known_good(), elsewhere / "step_00000020");
  for (const std::int64_t step : {22, 24}) save<float>(writer, step, 1);
  writer.mark_known_good();
  EXPECT_EQ(folders(here), std::vector<std::string>{"step_00000024"});
  EXPECT_EQ(folders(elsewhere), std::vector<std::string>{"step_00000020"});
  CheckpointWriter(world, here, 1, log).start_fresh();
  EXPECT_EQ(folders(scratch / "here.superseded-2"), std::vector<std::string>{"step_00000024"});
}

TEST_F(Checkpoint, TheNameOfTheDirectoryMayBeAnyBytes) {
  const fs::path directory = scratch / "caf\xe9 1";
  save<float>(directory, 3);
  EXPECT_EQ(CheckpointReader::find(world, directory, "auto", log)->folder(), directory / "step_00000003");
  EXPECT_EQ(CheckpointReader::find(world, scratch.path(), directory.string(), log)->info().state.step, 3);
}

TEST_F(Checkpoint, ReplacesTheSameStep) {
  save<float>(10, 1);
  save<float>(10, 2);
  EXPECT_EQ(wrong_on<float>(size, 10, 2), 0);
  if (rank == 0) {
    for (const auto& entry : fs::directory_iterator(scratch.path()))
      EXPECT_EQ(entry.path().string().find("partial"), std::string::npos) << entry.path();
  }
}

TEST_F(Checkpoint, WithoutMomentsTheyAreLeftAlone) {
  FakeState<float> state(rank, size), back(rank, size);
  state.fill(4);
  auto contents = state.contents(3);
  contents.moments = {};
  CheckpointWriter(world, scratch.path(), 0, log).write(contents);
  auto reader = CheckpointReader::open(world, scratch / "step_00000003");
  EXPECT_FALSE(reader.info().has_optimizer);
  reader.read(back.parameters.tensors(), back.moments(), ScalarType::fp32);
  EXPECT_EQ(back.parameters.differences(4), 0);
  for (const float value : back.exp_avg.memory()) ASSERT_EQ(value, -1.0f);
}

TEST_F(Checkpoint, OfTheToolsIsRead) {
  for (const char* name : {"llama", "qwen2", "qwen3"}) {
    const auto folder = test::test_folder() / "golden" / name / "step_00000000";
    auto reader = CheckpointReader::open(world, folder);
    EXPECT_FALSE(reader.info().has_optimizer);
    EXPECT_EQ(reader.info().model.vocab_size, 131);
    std::vector<float> norm(32);
    const StateTensor t{"model/norm/weight", {32}, {{{0}, {32}, norm.data(), {1}}}};
    reader.read(std::vector<StateTensor>{t}, {}, ScalarType::fp32);
    EXPECT_NE(norm[31], 0.0f);
  }
}

TEST_F(Checkpoint, AFullDiskEndsAllRanksAndHarmsNothing) {
  save<float>(1, 6);
  FakeState<double> state(rank, size, 8);
  state.fill(1);
  MPI_Barrier(world);
  {
    const FileSizeLimit limit(128 << 10);
    expect_error(ExitCode::system_error, "step_00000002.partial",
                 [&] { CheckpointWriter(world, scratch.path(), 0, log).write(state.contents(2)); });
  }
  MPI_Barrier(world);
  EXPECT_FALSE(fs::exists(scratch / "step_00000002.partial"));
  EXPECT_FALSE(fs::exists(scratch / "step_00000002"));
  EXPECT_EQ(wrong_on<float>(1, 1, 6), 0);
  save<float>(2, 7);
  EXPECT_EQ(wrong_on<float>(1, 2, 7), 0);
}

TEST_F(Checkpoint, ADirectoryThatCannotBeMadeIsAnError) {
  if (rank == 0) test::write_bytes(scratch / "file", {'x'});
  MPI_Barrier(world);
  FakeState<float> state(rank, size);
  expect_error(ExitCode::system_error, "Not a directory",
               [&] { CheckpointWriter(world, scratch / "file/checkpoints", 0, log).write(state.contents(2)); });
}

}  // namespace
}  // namespace nanotron::io
