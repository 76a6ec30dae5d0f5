#pragma once

// Messages between ranks that are next to each other in a group, the last being next to the first: the
// interface behind start_send and start_receive of collectives.hpp, one class per transport.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "nanotron/comm/communicator.hpp"
#include "nanotron/comm/group.hpp"

namespace nanotron::comm {

/// Rank r's neighbours are (r + 1) mod size and (r - 1) mod size.
enum class Neighbour { next, previous };

/// Operations that run behind what the caller does. Each ticket is given to wait once, or to test until it is true.
class Operations {
 public:
  virtual ~Operations() = default;
  virtual bool test(std::uint64_t ticket) = 0;
  virtual void wait(std::uint64_t ticket) = 0;
};

/// Messages of one lane from one rank to a neighbour arrive in the order in which they were sent and are independent of
/// all others: a send that nobody receives yet holds up nothing else. The first call of a lane on each rank may connect
/// it with its neighbours, and then waits for theirs.
class Messages : public Operations {
 public:
  virtual std::uint64_t start_send(const void* data, std::size_t bytes, Neighbour to, int lane,
                                   const Stream& stream) = 0;
  virtual std::uint64_t start_receive(void* data, std::size_t bytes, Neighbour from, int lane,
                                      const Stream& stream) = 0;
};

/// Host memory. The communicator must outlive the messages.
std::unique_ptr<Messages> make_mpi_messages(const Communicator& communicator);
#ifdef NANOTRON_WITH_CUDA
std::unique_ptr<Messages> make_nccl_messages(const Communicator& communicator);
/// GPU memory, copied through pinned host buffers that `host` moves.
std::unique_ptr<Messages> make_staged_messages(std::unique_ptr<Messages> host);
#endif

}  // namespace nanotron::comm
