#include "nanotron/io/files/shared_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>

#include "nanotron/base/process.hpp"
#include "nanotron/base/start_account.hpp"
#include "nanotron/base/timer.hpp"
#include "nanotron/comm/communicator.hpp"

namespace nanotron::io {
namespace {

constexpr std::size_t head_bytes = 512;

// What tells two files apart; plain bytes, so that it can be broadcast.
struct Look {
  int error = 0;  // errno; 0: the file was read
  std::int64_t bytes = 0;
  std::array<char, head_bytes> head{};
};

Look look_once(const std::filesystem::path& path) {
  Look look;
  count_opened_file();
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    look.error = errno;
    return look;
  }
  struct stat status {};
  ssize_t got = 0;
  do got = ::pread(descriptor, look.head.data(), look.head.size(), 0);
  while (got < 0 && errno == EINTR);
  if (got < 0 || ::fstat(descriptor, &status) != 0) look.error = errno;
  look.bytes = status.st_size;
  ::close(descriptor);
  return look;
}

// A read that failed is tried again.
Look look_at(const std::filesystem::path& path) {
  Look look = look_once(path);
  for (int attempt = 1; attempt < 3 && look.error != 0 && look.error != ENOENT; ++attempt) look = look_once(path);
  return look;
}

std::string difference(const Look& mine, const Look& first) {
  if (mine.error != 0) return std::strerror(mine.error);
  if (mine.bytes != first.bytes) return fmt::format("{} bytes, rank 0 sees {}", mine.bytes, first.bytes);
  return mine.head == first.head ? "" : "another file of the same size";
}

// What two looks agree on: all others are compared with it.
Look agreed_look_at(const std::filesystem::path& path) {
  Look look = look_at(path);
  for (int attempt = 1; attempt < 3 && look.error == 0; ++attempt) {
    const Look again = look_at(path);
    if (again.error == 0 && difference(again, look).empty()) break;
    look = again;
  }
  return look;
}

}  // namespace

void require_same_file(MPI_Comm world, const std::filesystem::path& path, ExitCode code, double patience, bool looks) {
  int rank = 0;
  NANOTRON_CHECK_MPI(MPI_Comm_rank(world, &rank));
  Look first;
  comm::collectively(world, [&] {
    if (rank != 0) return;
    first = agreed_look_at(path);
    if (first.error != 0)
      fail(code, {.what = fmt::format("opening {}", path.string()), .found = std::strerror(first.error)});
  });
  NANOTRON_CHECK_MPI(MPI_Bcast(&first, sizeof first, MPI_BYTE, 0, world));
  comm::collectively(world, [&] {
    if (!looks) return;
    std::string found = difference(look_at(path), first);
    for (const double end = wall_seconds() + patience; !found.empty() && wall_seconds() < end;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      found = difference(look_at(path), first);
    }
    if (!found.empty())
      fail(code, {.what = fmt::format("{} is not the same on all ranks", path.string()),
                  .expected = "what rank 0 sees",
                  .found = fmt::format("rank {} on host {}: {}", rank, host_name(), found),
                  .change = "put run%output_dir and checkpoint%directory on a file system that all nodes share"});
  });
}

}  // namespace nanotron::io
