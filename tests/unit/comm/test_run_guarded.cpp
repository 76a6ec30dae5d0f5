// ranks: 1 2 4
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/session/mpi_session.hpp"
#include "support/world.hpp"

namespace nanotron::comm {
namespace {

int rank_of_world() {
  int rank = 0;
  MPI_Comm_rank(test::world(), &rank);
  return rank;
}

std::string guarded_stderr(const std::function<int()>& program, int expected) {
  std::string told;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run_guarded(test::world(), program,
                        [&](int code, const std::string& message) {
                          EXPECT_EQ(code, expected);
                          told += message + "\n";
                        }),
            expected);
  const std::string printed = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(told, printed);
  return printed;
}

TEST(RunGuarded, PassesTheExitCodeOn) {
  EXPECT_EQ(run_guarded(test::world(), [] { return 75; }), 75);
  EXPECT_EQ(run_guarded(test::world(), [] { return 0; }), 0);
}

TEST(RunGuarded, WhatEveryRankThrowsIsPrintedOnce) {
  const std::string text = guarded_stderr(
      []() -> int {
        if (rank_of_world() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
        throw Error(ExitCode::deck_error, "deck: wrong");
      },
      78);
  EXPECT_EQ(text, rank_of_world() == 0 ? "deck: wrong\n" : "");
}

TEST(RunGuarded, DifferentMessagesAreAllPrinted) {
  const int rank = rank_of_world();
  const std::string text =
      guarded_stderr([rank]() -> int { throw std::runtime_error("trouble " + std::to_string(rank / 2)); }, 71);
  const std::string expected = "error: trouble " + std::to_string(rank / 2) + "\n";
  EXPECT_EQ(text, rank % 2 ? "" : rank == 0 ? expected : "[rank " + std::to_string(rank) + "] " + expected);
}

// The program that the next test starts: rank 1 fails while the others wait for it.
TEST(RunGuarded, Child) {
  const char* code = std::getenv("NANOTRON_TEST_CHILD");
  if (code == nullptr) return;
  const auto program = [&]() -> int {
    Group group(Communicator::duplicate(test::world()), Transport::mpi);
    std::vector<float> data(100000, 1.0f);
    Request running = start_all_reduce(group, data.data(), data.size(), ReduceOp::sum);
    if (group.rank() == 1) throw Error(static_cast<ExitCode>(std::atoi(code)), "rank one is lost");
    running.wait();
    barrier(group);
    return 0;
  };
  run_guarded(test::world(), program,
              [](int told, const std::string& message) { fmt::print(stderr, "told {}: {}\n", told, message); });
  FAIL() << "the job outlived a lost rank";
}

TEST(RunGuarded, OneLostRankEndsTheJobWithItsCode) {
  const char* mpiexec = std::getenv("NANOTRON_MPIEXEC");
  int size = 0;
  MPI_Comm_size(test::world(), &size);
  if (size > 1) GTEST_SKIP() << "one rank starts the job";
  ASSERT_NE(mpiexec, nullptr) << "ctest sets NANOTRON_MPIEXEC";
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  for (const int code : {65, 70, 71}) {
    // A clean environment: the job is not to know that it is started from inside another.
    const std::string command =
        "env -i PATH=\"$PATH\" HOME=\"$HOME\" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
        "OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe "
        "NANOTRON_TEST_CHILD=" +
        std::to_string(code) + " timeout 60 '" + mpiexec + "' -n 3 '" + self + "' --gtest_filter=RunGuarded.Child 2>&1";
    std::FILE* pipe = popen(command.c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    std::string text;
    std::array<char, 4096> line{};
    while (std::fgets(line.data(), line.size(), pipe) != nullptr) text += line.data();
    const int status = pclose(pipe);
    EXPECT_EQ(WEXITSTATUS(status), code) << text;
    EXPECT_NE(text.find(fmt::format("told {}: [rank 1] rank one is lost", code)), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace nanotron::comm
