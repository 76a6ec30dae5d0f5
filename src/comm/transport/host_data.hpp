#pragma once

// What moves the data of a group through host memory.

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nanotron/comm/transport/channel.hpp"

namespace nanotron::comm {

/// all_to_all of collectives.hpp. Round s sends to rank + s and receives from rank - s, in messages of max
/// `most` elements. Empty messages are not sent.
void pairwise_exchange(MPI_Comm comm, const void* send, std::span<const std::size_t> send_counts, void* recv,
                       std::span<const std::size_t> recv_counts, DataType type, std::size_t most);

/// The same without waiting: all messages are posted at once. Tickets have the highest bit set, unlike those of the
/// channels, which own one object each.
class StartedExchanges {
 public:
  explicit StartedExchanges(MPI_Comm comm) : comm_(comm) {}
  static bool owns(std::uint64_t ticket) { return ticket >> 63 != 0; }

  std::uint64_t start(const void* send, std::span<const std::size_t> send_counts, void* recv,
                      std::span<const std::size_t> recv_counts, DataType type, std::size_t most);
  /// True when all its messages are sent and received; then the ticket may be given again.
  bool test(std::uint64_t ticket);

 private:
  struct Running {
    std::vector<MPI_Request> messages;  // the receives, then the sends
    std::vector<std::size_t> received;  // bytes that each receive expects
  };
  void post(Running& running, const void* send, std::span<const std::size_t> send_counts, void* recv,
            std::span<const std::size_t> recv_counts, DataType type, std::size_t max_bytes) const;

  MPI_Comm comm_;
  std::vector<Running> running_;  // those of complete exchanges are used again
  std::vector<std::uint64_t> free_;
  std::vector<MPI_Status> statuses_;
};

/// result[i] <- ((s0[i] op s1[i]) op s2[i]) ... in the order of sources; bf16 and fp16 in float, rounded once.
/// result may be one of the sources. If copy is not null the same values are written there.
void reduce_elements(DataType type, ReduceOp op, std::span<const void* const> sources, std::size_t n, void* result,
                     void* copy);

/// As NANOTRON_CHECK_MPI, but an error here may be that another rank made another call, or gave another size, and this
/// rank's message would name the wrong one. Where a watchdog is on it is printed as a warning, and the verdict is
/// waited for.
void check_transfer(int status, const char* call, const char* file, int line);

}  // namespace nanotron::comm

#define NANOTRON_CHECK_TRANSFER(call) ::nanotron::comm::check_transfer((call), #call, __FILE__, __LINE__)
