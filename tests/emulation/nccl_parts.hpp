#pragma once

// Communicators of the emulated NCCL and the parts of an operation: a collective, a send, a receive.

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "emulation/scheduler.hpp"
#include "nanotron/base/gpu_api.hpp"
#include "nanotron/comm/transport/nccl_api.hpp"

namespace nanotron::emulation {

inline constexpr int max_ranks = 64, max_windows = 16;
enum class Algorithm { ring, tree };
inline constexpr std::size_t algorithms = 2;

struct Row {
  std::atomic<int> world_rank;
  std::atomic<bool> has_joined, has_left;
  std::atomic<std::uint64_t> published;                                      // collectives whose data are there
  std::atomic<int> windows;                                                  // registered so far
  std::array<std::atomic<std::uint64_t>, max_windows> window_bytes;          // of each of them
  std::array<std::atomic<std::uint64_t>, max_ranks> sent, received;          // messages, by peer
  std::array<std::atomic<bool>, max_ranks> connects_send, connects_receive;  // nccl_connections.hpp
  std::array<std::atomic<bool>, algorithms> connects_collectives;
};
struct Segment {
  std::array<Row, max_ranks> rows;
  std::atomic<int> left;
};

/// A file of shared memory, mapped while it exists here.
class Shared {
 public:
  Shared(const std::string& name, std::size_t bytes);
  ~Shared();
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  void* get() const { return memory_; }

 private:
  std::size_t bytes_;
  void* memory_ = nullptr;
};

enum class Kind { all_reduce, all_gather, reduce_scatter, broadcast };

// What all ranks of a collective must say alike.
struct Call {
  Kind kind{};
  ncclDataType_t type{};
  ncclRedOp_t op{};
  std::size_t count = 0;  // ncclAllReduce, Broadcast: of the data; AllGather: sent; ReduceScatter: received
  int root = 0;
  std::int64_t offset = -1;  // in a window, of the operand that other ranks reach; -1: in none
  friend bool operator==(const Call&, const Call&) = default;
};

std::size_t size_of(ncclDataType_t type);

/// Of an address in a window of the communicator; -1 outside.
std::int64_t offset_in_window(const ncclComm& comm, const void* operand);
void require_no_window(const ncclComm& comm);
void forget_registrations(const ncclComm& comm);

}  // namespace nanotron::emulation

struct ncclComm {
  std::string name;
  int size = 0, rank = 0;
  int max_blocks = 0;  // maxCTAs; 0: not limited
  std::unique_ptr<nanotron::emulation::Shared> memory;
  std::uint64_t issued = 0, begun = 0, done = 0;  // operations; one group is one operation
  std::uint64_t collectives = 0;                  // that ran here
  nanotron::emulation::Segment& segment() const { return *static_cast<nanotron::emulation::Segment*>(memory->get()); }
  nanotron::emulation::Row& row(int r) const { return segment().rows[static_cast<std::size_t>(r)]; }
  nanotron::emulation::Row& own() const { return row(rank); }
};

namespace nanotron::emulation {

// One collective, send or receive of an operation. Runs with access to device memory.
class Part {
 public:
  virtual ~Part() = default;
  virtual Progress run(ncclComm& comm) = 0;
  virtual std::string describe(const ncclComm& comm) const = 0;
};

/// From its making to its end a communicator takes part in the order of launches.
void follow_launches(const ncclComm& comm);
void forget_launches(const ncclComm& comm);

/// A fault unless the memory is the device's. At its launch.
std::shared_ptr<Part> make_collective(const Call& call, const void* send, void* recv, const ncclComm& comm);
std::shared_ptr<Part> make_send(const void* data, std::size_t bytes, int to);
std::shared_ptr<Part> make_receive(void* data, std::size_t bytes, int from);

}  // namespace nanotron::emulation
