#pragma once

#include <mpi.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>

namespace nanotron::test {

/// A folder of this test program, the same on all ranks of `world`. What a run puts beside it (folders that are set
/// aside) goes with it at the end; a killed test leaves its folder, which a test of a day later removes. Collective.
class TemporaryFolder {
 public:
  TemporaryFolder(MPI_Comm world, const std::string& name) : world_(world) {
    MPI_Comm_rank(world, &rank_);
    int process = static_cast<int>(::getpid());
    MPI_Bcast(&process, 1, MPI_INT, 0, world);
    whole_ = std::filesystem::temp_directory_path() / (prefix + std::to_string(process) + "_" + name);
    path_ = whole_ / "folder";
    if (rank_ == 0) {
      remove_old();
      std::filesystem::remove_all(whole_);
      std::filesystem::create_directories(path_);
    }
    MPI_Barrier(world_);
  }
  ~TemporaryFolder() {
    MPI_Barrier(world_);
    std::error_code ignored;
    if (rank_ == 0) std::filesystem::remove_all(whole_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  static constexpr const char* prefix = "nanotron_test_";

  static void remove_old() {
    const auto yesterday = std::filesystem::file_time_type::clock::now() - std::chrono::hours(24);
    std::error_code failed, ignored;
    std::filesystem::directory_iterator entry(std::filesystem::temp_directory_path(), failed);
    for (; !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
      std::error_code gone;  // another test may just have removed it
      const bool is_old = entry->last_write_time(gone) < yesterday && !gone;
      const bool ours = entry->path().filename().string().starts_with(prefix);
      if (ours && is_old) std::filesystem::remove_all(entry->path(), ignored);
    }
  }

  MPI_Comm world_;
  int rank_ = 0;
  std::filesystem::path whole_, path_;
};

}  // namespace nanotron::test
