#include "shared_segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>

#include "nanotron/base/error.hpp"

namespace nanotron::comm {
namespace {

bool all_of(const Communicator& communicator, bool mine) {
  int good = mine ? 1 : 0;
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &good, 1, MPI_INT, MPI_MIN, communicator.get()));
  return good != 0;
}

}  // namespace

SharedSegment::~SharedSegment() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
}

bool SharedSegment::open(const Communicator& communicator, std::size_t bytes_per_rank) {
  if (!communicator.is_on_one_node()) return false;
  bytes_per_rank_ = bytes_per_rank;
  bytes_ = bytes_per_rank * static_cast<std::size_t>(communicator.size());

  std::array<char, 64> name{};
  int file = -1;
  if (communicator.rank() == 0) {
    const auto now = std::chrono::system_clock::now().time_since_epoch().count();
    std::snprintf(name.data(), name.size(), "/nanotron_%ld_%llx", static_cast<long>(getpid()),
                  static_cast<unsigned long long>(now));
    file = shm_open(name.data(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file >= 0 && ftruncate(file, static_cast<off_t>(bytes_)) != 0) {
      close(file);
      file = -1;
    }
  }
  NANOTRON_CHECK_MPI(MPI_Bcast(name.data(), static_cast<int>(name.size()), MPI_CHAR, 0, communicator.get()));
  const bool mapped = map(communicator, name.data());
  const bool good = all_of(communicator, mapped);
  if (file >= 0) {
    close(file);
    shm_unlink(name.data());
  }
  if (!good && memory_ != nullptr) {
    munmap(memory_, bytes_);
    memory_ = nullptr;
  }
  return good;
}

bool SharedSegment::map(const Communicator& communicator, const char* name) {
  const int file = shm_open(name, O_RDWR | O_CLOEXEC, 0600);
  if (file < 0) return false;
  // Each rank allocates its own pages: they are on its NUMA node, and a full file system fails here, not
  // later with SIGBUS.
  const auto offset = static_cast<off_t>(static_cast<std::size_t>(communicator.rank()) * bytes_per_rank_);
  int status = 0;
  do status = posix_fallocate(file, offset, static_cast<off_t>(bytes_per_rank_));
  while (status == EINTR);
  if (status == 0) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory != MAP_FAILED) memory_ = static_cast<std::byte*>(memory);
  }
  close(file);
  return memory_ != nullptr;
}

}  // namespace nanotron::comm
