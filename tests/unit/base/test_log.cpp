// ranks: 1 2
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <string>

#include "nanotron/base/error.hpp"
#include "nanotron/base/log.hpp"
#include "support/temporary_folder.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

TEST(Log, OneRankSpeaksAndTheFileIsAppended) {
  int rank = 0;
  MPI_Comm_rank(test::world(), &rank);
  const test::TemporaryFolder folder(test::world(), "log");
  const auto file = folder / ("log_" + std::to_string(rank));
  for (int run = 0; run < 2; ++run) {
    Log log(rank == 0, rank);
    log.open(file);
    log.set_quiet(true);
    ::testing::internal::CaptureStdout();
    log.info("step {}", run);
    log.warn("careful");
    log.summary("done");
    const std::string console = ::testing::internal::GetCapturedStdout();
    EXPECT_EQ(console, rank == 0 ? "warning: careful\ndone\n" : "");
  }
  std::ifstream stream(file);
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  EXPECT_EQ(text, rank == 0 ? "step 0\nwarning: careful\ndone\nstep 1\nwarning: careful\ndone\n" : "");
}

TEST(Log, ErrorsOfEveryRankReachStderr) {
  Log log(false, 7);
  ::testing::internal::CaptureStderr();
  log.error("lost {}", "power");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "[rank 7] lost power\n");
}

TEST(Log, UnwritableFileIsAnError) {
  Log log(true);
  EXPECT_THROW(log.open("/nonexistent/folder/run.log"), Error);
  const test::TemporaryFolder folder(test::world(), "log_pipe");
  const auto pipe = folder / "pipe";
  ::mkfifo(pipe.c_str(), 0600);  // one of the ranks makes it
  EXPECT_THROW(log.open(pipe), Error) << "nobody reads it";
}

TEST(Log, AFullDiskIsToldOnceAndEndsNothing) {
  Log log(true);
  log.open("/dev/full");
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  for (int step = 0; step < 3; ++step) log.info("step {}", step);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "step 0\nstep 1\nstep 2\n");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "warning: /dev/full cannot be written: No space left on device; later lines are missing from it\n");
}

}  // namespace
}  // namespace nanotron
