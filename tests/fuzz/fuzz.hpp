#pragma once

// What fuzz targets share. A target is LLVMFuzzerTestOneInput over one kind of input: libFuzzer calls it (preset fuzz),
// and so does replay.cpp, in every other build. It ends the process where a promise of SECURITY.md is broken.

#include <mpi.h>
#include <unistd.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/session/mpi_session.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace nanotron::fuzz {

[[noreturn]] inline void broken(const std::string& promise) {
  std::fprintf(stderr, "fuzz: %s\n", promise.c_str());
  std::abort();
}

inline void require(bool holds, const std::string& promise) {
  if (!holds) broken(promise);
}

/// Runs work. True if it came to its end, false if it threw an Error of one of these codes; all else is broken.
template <class Work>
bool ends_well(std::initializer_list<ExitCode> codes, const Work& work) {
  try {
    work();
    return true;
  } catch (const Error& error) {
    if (std::find(codes.begin(), codes.end(), error.exit_code()) == codes.end())
      broken("exit code " + std::to_string(static_cast<int>(error.exit_code())) + ": " + error.what());
    return false;
  }
}

/// Files of a process, in memory where the system has a place for them.
class Folder {
 public:
  Folder() : path_(of(::getpid())) { std::filesystem::create_directories(path_); }
  ~Folder() { empty(); }
  static std::filesystem::path of(int process) {
    std::error_code ignored;
    const std::filesystem::path memory = "/dev/shm", other = std::filesystem::temp_directory_path();
    return (std::filesystem::is_directory(memory, ignored) ? memory : other) /
           ("nanotron_fuzz_" + std::to_string(process));
  }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  void empty() const {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

 private:
  std::filesystem::path path_;
};

inline std::filesystem::path write(const std::filesystem::path& path, std::string_view bytes) {
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  require(file != nullptr && std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size() && std::fclose(file) == 0,
          "no space for the input");
  return path;
}

/// MPI (of this process alone) and Kokkos, until the process ends.
inline MPI_Comm session() {
  static const auto started = [] {
    static int argc = 1;
    static char name[] = "fuzz", *arguments[] = {name, nullptr}, **argv = arguments;
    struct Session {
      comm::MpiSession mpi{argc, argv};
      Kokkos::ScopeGuard kokkos{argc, argv};
    };
    return new Session();  // never finalized: a target ends in any place
  }();
  (void)started;
  return MPI_COMM_SELF;
}

}  // namespace nanotron::fuzz
