#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "nanotron/base/error.hpp"
#include "support/temporary_folder.hpp"

namespace nanotron::test {

/// The folder of the test that runs. Collective.
class Scratch : public TemporaryFolder {
 public:
  explicit Scratch(MPI_Comm world)
      : TemporaryFolder(world, ::testing::UnitTest::GetInstance()->current_test_info()->name()) {}
};

/// Runs `work`, which must throw Error(code) with `words` somewhere in its message.
inline void expect_error(ExitCode code, const std::string& words, const std::function<void()>& work) {
  try {
    work();
    ADD_FAILURE() << "no error; expected one that says: " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos)
        << "expected: " << words << "\nmessage: " << error.what();
  }
}

inline std::vector<char> read_bytes(const std::filesystem::path& path) {
  std::ifstream input(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(input), std::istreambuf_iterator<char>()};
}

inline void write_bytes(const std::filesystem::path& path, const std::vector<char>& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace nanotron::test
