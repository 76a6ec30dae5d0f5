// ranks: 1
#include "nanotron/io/files/run_lock.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "support/world.hpp"
#include "unit/data/scratch.hpp"

namespace nanotron::io {
namespace {

using test::expect_error;
using test::Scratch;

TEST(RunLock, KeepsASecondRunOutAsLongAsItLives) {
  const Scratch scratch(test::world());
  Log log(false);
  std::optional<RunLock> first(std::in_place, scratch / "new/run", log, 0.0);
  EXPECT_EQ(first->file(), scratch / "new/run/run.lock");
  const auto second = [&] { RunLock(scratch / "new/run", log, 0.2); };
  expect_error(ExitCode::system_error, "another run writes into this directory", second);
  expect_error(ExitCode::system_error, ", process " + std::to_string(::getpid()), second);
  std::optional<RunLock> moved(std::move(*first));
  first.reset();
  expect_error(ExitCode::system_error, "run.lock", second);
  moved.reset();
  EXPECT_NO_THROW(second());
}

TEST(RunLock, SaysAtOnceThatItWaits) {
  const Scratch scratch(test::world());
  Log silent(false), log(true);
  log.open(scratch / "run.log");
  ::testing::internal::CaptureStdout();
  const RunLock first(scratch.path(), silent, 0.0);
  expect_error(ExitCode::system_error, "another run writes", [&] { RunLock(scratch.path(), log, 0.3); });
  const std::string console = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(console.find("warning: another run writes into " + scratch.path().string() + " (host "), 0u) << console;
  EXPECT_EQ(std::count(console.begin(), console.end(), '\n'), 1) << console;
}

TEST(RunLock, FollowsNoLink) {
  const Scratch scratch(test::world());
  Log log(false);
  test::write_bytes(scratch / "precious", {'x'});
  std::filesystem::create_symlink(scratch / "precious", scratch / "run.lock");
  expect_error(ExitCode::system_error, "symbolic link", [&] { RunLock(scratch.path(), log, 0.0); });
  EXPECT_EQ(test::read_bytes(scratch / "precious"), std::vector<char>{'x'});
}

TEST(RunLock, OfADirectoryThatCannotBeMadeIsAnError) {
  const Scratch scratch(test::world());
  Log log(false);
  test::write_bytes(scratch / "file", {'x'});
  expect_error(ExitCode::system_error, "Not a directory", [&] { RunLock(scratch / "file/run", log, 0.0); });
}

}  // namespace
}  // namespace nanotron::io
