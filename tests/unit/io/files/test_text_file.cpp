// ranks: 1
#include "nanotron/io/files/text_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>

#include "support/file_size_limit.hpp"
#include "support/world.hpp"
#include "unit/data/scratch.hpp"

namespace nanotron::io {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  const auto bytes = test::read_bytes(path);
  return {bytes.begin(), bytes.end()};
}

TEST(TextFile, IsReplacedWholeOrNotAtAll) {
  const test::Scratch scratch(test::world());
  const fs::path path = scratch / "deck.nml";
  ASSERT_EQ(replace_text(path, "first"), 0);
  ASSERT_EQ(replace_text(path, "second"), 0);
  EXPECT_EQ(text_of(path), "second");
  {
    const test::FileSizeLimit limit(1000);
    EXPECT_EQ(replace_text(path, std::string(5000, 'x')), EFBIG);
  }
  EXPECT_EQ(text_of(path), "second");
  EXPECT_FALSE(fs::exists(path.string() + ".tmp"));
  EXPECT_EQ(replace_text(scratch / "no/such/folder", "text"), ENOENT);
}

TEST(TextFile, FollowsNoLinkAndWaitsForNoPipe) {
  const test::Scratch scratch(test::world());
  const fs::path path = scratch / "deck.nml", beside = path.string() + ".tmp", other = scratch / "other";
  ASSERT_EQ(replace_text(other, "precious"), 0);
  fs::create_symlink(other, beside);
  ASSERT_EQ(replace_text(path, "text"), 0);
  EXPECT_EQ(text_of(other), "precious");
  ASSERT_EQ(::mkfifo(beside.c_str(), 0666), 0);
  ASSERT_EQ(replace_text(path, "after a pipe"), 0);
  EXPECT_EQ(text_of(path), "after a pipe");
}

}  // namespace
}  // namespace nanotron::io
