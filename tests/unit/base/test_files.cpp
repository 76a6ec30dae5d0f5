// ranks: 1
#include "nanotron/base/files.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "nanotron/base/error.hpp"
#include "support/temporary_folder.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

namespace fs = std::filesystem;
using files::Kind;

class Files : public ::testing::Test {
 protected:
  test::TemporaryFolder folder{test::world(), "files"};
  fs::path text = folder / "text", link = folder / "link", loop = folder / "loop", gone = folder / "gone";

  void SetUp() override {
    std::ofstream(text) << "words";
    fs::create_symlink(text, link);
    fs::create_symlink(loop, loop);
    fs::create_symlink(folder / "nowhere", gone);
  }
};

TEST_F(Files, KindsAreOfWhatIsThere) {
  EXPECT_EQ(files::kind_of(folder / "nothing"), Kind::nothing);
  EXPECT_EQ(files::kind_of(text / "below a file"), Kind::nothing);
  EXPECT_EQ(files::kind_of(link), Kind::file);
  EXPECT_EQ(files::kind_of_name(link), Kind::link);
  EXPECT_EQ(files::kind_of(gone), Kind::nothing);
  EXPECT_EQ(files::kind_of_name(gone), Kind::link);
  EXPECT_EQ(files::kind_of(text.parent_path()), Kind::folder);
  EXPECT_TRUE(files::is_same(text, link));
  EXPECT_FALSE(files::is_same(text, gone));
  EXPECT_EQ(files::bytes_of(link), 5);
  EXPECT_EQ(files::bytes_of(gone), std::nullopt);
  EXPECT_EQ(files::entries_of(text.parent_path()).size(), 4u);
  EXPECT_TRUE(files::entries_of(gone).empty());
}

// As ESTALE and EIO, which no test can have from a disk.
TEST_F(Files, ALookWithoutAnAnswerIsAnError) {
  const auto expect_71 = [](const auto& look) {
    try {
      look();
      ADD_FAILURE() << "taken for an answer";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::system_error) << error.what();
    }
  };
  expect_71([&] { files::kind_of(loop); });
  expect_71([&] { files::exists(loop / "below"); });
  expect_71([&] { files::is_same(text, loop); });
  expect_71([&] { files::bytes_of(loop); });
  expect_71([&] { files::entries_of(loop); });
  expect_71([&] { files::entries_of(text); });
  expect_71([&] { files::text_of(loop / "text"); });
}

TEST_F(Files, NoLinkAndNoPipeIsOpened) {
  const fs::path pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0666), 0);
  EXPECT_EQ(files::open_plain(link, O_WRONLY | O_APPEND), -1);
  EXPECT_EQ(files::why_not_plain(errno), "a symbolic link");
  EXPECT_EQ(files::open_plain(pipe, O_RDONLY), -1);
  EXPECT_EQ(files::why_not_plain(errno), "not a regular file");
  EXPECT_EQ(files::open_plain(gone, O_WRONLY | O_CREAT), -1);
  EXPECT_FALSE(fs::exists(folder / "nowhere"));
  EXPECT_EQ(files::text_of(text), "words");
  EXPECT_EQ(files::text_of(text, 3), "wor");
  EXPECT_EQ(files::text_of(link), std::nullopt);
  EXPECT_EQ(files::text_of(pipe), std::nullopt);
}

}  // namespace
}  // namespace nanotron
