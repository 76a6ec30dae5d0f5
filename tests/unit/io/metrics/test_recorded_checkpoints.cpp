// ranks: 1 2
#include "nanotron/io/metrics/recorded_checkpoints.hpp"

#include <gtest/gtest.h>

#include "nanotron/io/checkpoint/checkpoint_writer.hpp"
#include "support/world.hpp"
#include "unit/io/checkpoint_fixture.hpp"

namespace nanotron::io {
namespace {

TEST_F(Checkpoint, WhatALinkLeadsToIsNotRemoved) {
  CheckpointWriter writer(world, scratch / "run", 1, log);
  writer.start_fresh();
  for (const std::int64_t step : {10, 20}) save<float>(writer, step, 1);
  if (rank == 0) {  // archived, and linked back
    fs::rename(scratch / "run/step_00000010", scratch / "archived");
    fs::create_directory_symlink(scratch / "archived", scratch / "run/step_00000010");
  }
  MPI_Barrier(world);
  writer.mark_known_good();
  save<float>(writer, 30, 1);
  writer.mark_known_good();
  MPI_Barrier(world);
  EXPECT_FALSE(fs::exists(scratch / "run/step_00000020"));
  EXPECT_TRUE(fs::exists(scratch / "archived/manifest.json"));
  EXPECT_TRUE(fs::exists(scratch / "archived/checkpoint.h5"));
  EXPECT_TRUE(fs::is_symlink(scratch / "run/step_00000010"));
}

TEST_F(Checkpoint, IsRecordedUntilTheRunBeginsAnew) {
  const fs::path directory = scratch / "run";
  EXPECT_EQ(recorded_checkpoint(directory), "");
  EXPECT_FALSE(has_step_folders(directory));
  {
    CheckpointWriter writer(world, directory, 1, log);
    writer.start_fresh();
    save<float>(writer, 10, 1);
    writer.mark_known_good();
  }
  MPI_Barrier(world);
  EXPECT_NE(recorded_checkpoint(directory).find("latest names"), std::string::npos);
  EXPECT_TRUE(has_step_folders(directory));
  MPI_Barrier(world);
  if (rank == 0) {
    fs::rename(directory / "step_00000010", scratch / "away");
    fs::remove(directory / "latest");
  }
  MPI_Barrier(world);
  EXPECT_NE(recorded_checkpoint(directory).find("step 10"), std::string::npos);
  EXPECT_FALSE(has_step_folders(directory));
  MPI_Barrier(world);
  CheckpointWriter(world, directory, 1, log).start_fresh();
  EXPECT_EQ(recorded_checkpoint(directory), "");
}

}  // namespace
}  // namespace nanotron::io
