#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace nanotron::io {

/// The calls of an exchange that wait for other ranks.
class Waiting {
 public:
  virtual ~Waiting() = default;
  /// One number of each rank to each.
  virtual void exchange_sizes(MPI_Comm world, std::span<const std::int64_t> sent, std::span<std::int64_t> received) = 0;
  /// Until all are complete.
  virtual void wait_for(std::span<MPI_Request> requests) = 0;
};

/// By MPI's blocking calls, which the flight recorder sees: in the thread of the run.
class BlockingWaiting final : public Waiting {
 public:
  void exchange_sizes(MPI_Comm world, std::span<const std::int64_t> sent, std::span<std::int64_t> received) override;
  void wait_for(std::span<MPI_Request> requests) override;
};

/// In another thread: sleeps between polls, so that the cores are left to training, and nothing is recorded. Needs
/// MPI_THREAD_MULTIPLE.
class BackgroundWaiting final : public Waiting {
 public:
  void exchange_sizes(MPI_Comm world, std::span<const std::int64_t> sent, std::span<std::int64_t> received) override;
  void wait_for(std::span<MPI_Request> requests) override;
};

/// Sends outgoing[r] to rank r; returns what each rank sent here, by rank. Each message below 2 GiB. Collective.
std::vector<std::vector<std::byte>> exchange_messages(MPI_Comm world,
                                                      const std::vector<std::vector<std::byte>>& outgoing,
                                                      Waiting& waiting);

}  // namespace nanotron::io
