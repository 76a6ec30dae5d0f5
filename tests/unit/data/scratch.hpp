#pragma once

#include <gtest/gtest.h>
#include <mpi.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "nanotron/base/error.hpp"

namespace nanotron::test {

/// A folder of this test, the same on all ranks of `world`, removed at the end. Collective.
class Scratch {
 public:
  explicit Scratch(MPI_Comm world) : world_(world) {
    MPI_Comm_rank(world, &rank_);
    int process = static_cast<int>(::getpid());
    MPI_Bcast(&process, 1, MPI_INT, 0, world);
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::temp_directory_path() /
            ("nanotron_" + std::to_string(process) + "_" + info->name());
    if (rank_ == 0) {
      std::filesystem::remove_all(path_);
      std::filesystem::create_directories(path_);
    }
    MPI_Barrier(world_);
  }
  ~Scratch() {
    MPI_Barrier(world_);
    std::error_code ignored;
    if (rank_ == 0) std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  MPI_Comm world_;
  int rank_ = 0;
  std::filesystem::path path_;
};

/// Runs `work`, which must throw Error(code) with `words` somewhere in its message.
inline void expect_error(ExitCode code, const std::string& words,
                         const std::function<void()>& work) {
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
