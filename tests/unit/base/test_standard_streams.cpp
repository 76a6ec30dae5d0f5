// ranks: 1
#include "nanotron/base/process.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace nanotron {
namespace {

TEST(StandardStreams, ThatAreClosedAreOpenedAndOthersLeft) {
  const int kept = ::dup(1);
  ASSERT_GE(kept, 3);
  ::close(1);
  open_standard_streams();
  const int status = ::fcntl(1, F_GETFL), next = ::open("/dev/null", O_RDONLY);
  ::dup2(kept, 1);
  ::close(kept);
  EXPECT_EQ(status & O_ACCMODE, O_RDWR);
  EXPECT_GT(next, 2);
  ::close(next);
  open_standard_streams();
  EXPECT_NE(::fcntl(1, F_GETFL) & O_ACCMODE, O_RDONLY);
}

}  // namespace
}  // namespace nanotron
