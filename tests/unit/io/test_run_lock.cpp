// ranks: 1
#include "nanotron/io/run_lock.hpp"

#include <gtest/gtest.h>

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

TEST(RunLock, OfADirectoryThatCannotBeMadeIsAnError) {
  const Scratch scratch(test::world());
  Log log(false);
  test::write_bytes(scratch / "file", {'x'});
  expect_error(ExitCode::system_error, "Not a directory",
               [&] { RunLock(scratch / "file/run", log, 0.0); });
}

}  // namespace
}  // namespace nanotron::io
