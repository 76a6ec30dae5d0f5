// ranks: 1 2 4
#include "nanotron/io/files/shared_file.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "support/world.hpp"
#include "unit/data/scratch.hpp"

namespace nanotron::io {
namespace {

using test::expect_error;
using test::Scratch;

class SharedFile : public ::testing::Test {
 protected:
  SharedFile() {
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
    mine = scratch / ("disk_of_" + std::to_string(rank) + ".h5");
  }
  void write(const std::string& text) {
    test::write_bytes(mine, {text.begin(), text.end()});
    MPI_Barrier(world);
  }
  void expect_refused(const std::string& words) {
    expect_error(ExitCode::system_error, words, [&] { require_same_file(world, mine, ExitCode::system_error, 0.2); });
  }

  MPI_Comm world = test::world();
  int rank = 0, size = 1;
  Scratch scratch{test::world()};
  std::filesystem::path mine;  // another one on each rank, as on the nodes' own disks
};

TEST_F(SharedFile, TheSameOneIsFine) {
  write("the same");
  EXPECT_NO_THROW(require_same_file(world, mine, ExitCode::system_error, 0.2));
}

TEST_F(SharedFile, AnotherOneIsAnErrorThatNamesTheRank) {
  if (size == 1) GTEST_SKIP();
  write(rank == 1 ? "longer than that" : "short");
  expect_refused("rank 1 on host");
  expect_refused("16 bytes, rank 0 sees 5");
  write(rank == 1 ? "abcdf" : "abcde");
  expect_refused("another file of the same size");
}

TEST_F(SharedFile, AMissingOneEndsAllRanksBeforeTheCollectiveOpen) {
  if (rank + 1 < size)
    write("x");
  else
    MPI_Barrier(world);
  if (size > 1) expect_refused("No such file or directory");
}

TEST_F(SharedFile, OneThatComesLateIsWaitedFor) {
  if (rank == 0)
    write("late");
  else
    MPI_Barrier(world);
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    if (rank != 0) test::write_bytes(mine, {'l', 'a', 't', 'e'});
  });
  EXPECT_NO_THROW(require_same_file(world, mine, ExitCode::system_error, 20.0));
  late.join();
}

TEST_F(SharedFile, MissingOnRankZeroIsAnErrorAtOnce) {
  expect_error(ExitCode::data_error, "No such file or directory",
               [&] { require_same_file(world, scratch / "nothing.h5", ExitCode::data_error); });
}

}  // namespace
}  // namespace nanotron::io
