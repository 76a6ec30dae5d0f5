// ranks: 1
#include "nanotron/io/checkpoint/verified_file.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "nanotron/base/process.hpp"
#include "support/world.hpp"
#include "unit/data/scratch.hpp"
#include "unit/io/manifest_of.hpp"

namespace nanotron::io {
namespace {

class Verified : public ::testing::Test {
 protected:
  Verified() {
    for (std::size_t i = 0; i < text_.size(); ++i) text_[i] = static_cast<char>('a' + i % 23);
    write();
    manifest_ = test::manifest_of(path_, 0, 40);
  }
  void write() const { std::ofstream(path_, std::ios::binary) << text_; }
  std::string read(VerifiedFile& file, std::int64_t bytes, std::int64_t position) const {
    std::string to(static_cast<std::size_t>(bytes), '?');
    file.read(to.data(), bytes, position);
    return to;
  }

  test::Scratch scratch_{test::world()};
  std::filesystem::path path_ = scratch_ / "file";
  std::string text_ = std::string(205, ' ');
  Manifest manifest_;
};

TEST_F(Verified, ReadsAnyBytes) {
  VerifiedFile file(path_, manifest_);
  for (const auto& [position, bytes] : {std::pair{0, 205}, {39, 2}, {40, 40}, {17, 150}, {204, 1}, {3, 0}}) {
    EXPECT_EQ(read(file, bytes, position),
              text_.substr(static_cast<std::size_t>(position), static_cast<std::size_t>(bytes)));
  }
}

TEST_F(Verified, FindsWhatChangedSinceItWasChecked) {
  text_[90] ^= 1;  // block 2
  write();
  VerifiedFile file(path_, manifest_);
  EXPECT_EQ(read(file, 80, 0), text_.substr(0, 80));
  test::expect_error(ExitCode::system_error, "block 2 of", [&] { read(file, 3, 79); });
  test::expect_error(ExitCode::system_error, host_name(), [&] { read(file, 3, 79); });
  EXPECT_EQ(read(file, 40, 120), text_.substr(120, 40));
}

TEST_F(Verified, FindsAFileThatGotShorter) {
  text_.resize(201);
  write();
  VerifiedFile file(path_, manifest_);
  test::expect_error(ExitCode::system_error, "end of file", [&] { read(file, 1, 200); });
}

TEST_F(Verified, AnAbsentFileIsNoFailureOfTheSystem) {
  test::expect_error(ExitCode::data_error, "No such file", [&] { VerifiedFile(scratch_ / "nothing", manifest_); });
}

}  // namespace
}  // namespace nanotron::io
