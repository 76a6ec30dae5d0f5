#pragma once

// A group of ranks and the way they exchange data.

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "nanotron/comm/account.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/comm/operation_log.hpp"
#include "nanotron/deck/keys/parallel.hpp"

#if defined(NANOTRON_WITH_HIP)
using StreamHandle = struct ihipStream_t*;
#else
using StreamHandle = struct CUstream_st*;
#endif

namespace nanotron::comm {

/// The GPU stream that a collective is ordered with; not owned. Null on the host.
class Stream {
 public:
  Stream() = default;
  explicit Stream(StreamHandle handle) : handle_(handle) {}
  StreamHandle get() const { return handle_; }

 private:
  StreamHandle handle_ = nullptr;
};

enum class ReduceOp { sum, max, min };

enum class Transport {
  mpi,         // host memory: shared memory where all ranks share a node, MPI otherwise
  nccl,        // GPU memory, one GPU per rank
  staged_mpi,  // GPU memory, copied through pinned host buffers
};
const char* name_of(Transport transport);

/// Order of sums: the transport's own, or a binary tree over the ranks that adds neighbours in pairs
/// (tensor/sum_order.hpp). The tree goes through host memory.
enum class Sums { any_order, tree };

/// The transport for parallel%backend. On the host always mpi, and Error(deck_error) for 'nccl'. In a build for GPUs
/// 'auto' and 'nccl' are nccl, 'mpi' is staged_mpi. Ranks may share a GPU with 'mpi', and where
/// NCCL_MULTI_RANK_GPU_ENABLE=1 lets NCCL itself do it (2.30, src/init.cc). Otherwise Error on all ranks: system_error
/// where other hosts have a GPU for each rank, else deck_error. Collective; in a build for GPUs call it after the GPU
/// is selected.
Transport choose_transport(deck::Backend backend, const Communicator& world);

/// Whether two ranks of a host use the same GPU. Collective, as choose_transport().
bool ranks_share_gpus(const Communicator& world);

/// Requires the same bits from every reduction of the same data: NCCL's NVLS does not promise that and is turned off
/// unless NCCL_NVLS_ENABLE is set. Call it before the first group is made, on all ranks.
void want_repeatable_sums();

/// The GPU for this rank: its rank within its node modulo the GPUs it sees; -1 in a host build. Collective over world:
/// where a rank sees no GPU, Error(system_error) on every rank. Give it to Kokkos (device id) before anything touches a
/// GPU.
int gpu_of_rank(const Communicator& world);

/// Device memory, and how a transport registers it: of each rank separately, or as a window of a group's ranks.
struct Registration {
  std::span<std::byte> memory{};  // empty: deregister
  deck::MemoryRegistration how = deck::MemoryRegistration::none;
};
inline Registration by_rank(const Registration& r) { return {r.memory, deck::MemoryRegistration::local}; }

class Channel;   // comm/transport/channel.hpp
class Messages;  // comm/transport/messages.hpp

/// Owns a communicator and what its transport needs (NCCL communicator, staging memory), allocated when the
/// group is made. The constructors are collective. Every rank calls the same collectives in the same order. Move it
/// only while no Request is running.
class Group {
 public:
  Group(Communicator communicator, Transport transport, Sums sums = Sums::any_order,
        deck::CollectiveEngine engine = deck::CollectiveEngine::blocks);
  /// With the caller's channel for host memory; null: no bulk data.
  Group(Communicator communicator, std::unique_ptr<Channel> channel);
  /// A rank of a group without a communicator, for --plan. Its collectives and messages are counted in traffic(),
  /// reported to the log, and move nothing; sum, max and min of host values return this rank's own. Anything else that
  /// needs ranks is an internal error.
  static Group planned(int size, int rank, const PlannedLog& log = {}) {
    return Group(size, rank, Alone::planned, log);
  }
  ~Group();
  Group(Group&&) noexcept;

  bool is_planned() const { return alone_ == Alone::planned; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  const Communicator& communicator() const { return communicator_; }
  /// For host data that is not sent by collectives.hpp.
  MPI_Comm mpi() const;
  Transport transport() const { return transport_; }
  Traffic& traffic() { return account_.traffic; }
  Account& account() { return account_; }  // for collectives.cpp
  /// Operations are regions of `timers` from now on; null: no longer. Both outlive that.
  void time_with(Timers* timers, const OperationNames& names) {
    account_.timers = timers;
    account_.names = &names;
  }
  /// How bulk data moves: "shared memory", "MPI", "NCCL", "... through host buffers", "..., tree reduction"; or "none".
  std::string path() const;
  /// Bytes of staging memory on this rank.
  std::size_t staging_bytes() const;

  /// For collectives.cpp; an internal error if the group has none (one rank, no bulk data).
  Channel& channel();
  /// Made by the first call, which is collective; for groups of two or more ranks.
  Messages& messages();
  /// Makes that first call, while no rank waits for anything else. Does nothing for one rank.
  void open_messages();

  /// For RegisteredMemory; its rules apply. Messages have no windows: symmetric memory is registered for each rank.
  void register_memory(const Registration& registration);
  /// Before the first message. On a GPU: thread blocks that a message may take from kernels beside it; 0: chosen.
  void limit_message_blocks(int blocks) { message_blocks_ = blocks; }

 private:
  friend Group& alone();
  enum class Alone { no, yes, planned };  // without a communicator: a group of one rank, or a planned one
  Group(int size, int rank, Alone alone, const PlannedLog& log = {});

  Communicator communicator_;
  Alone alone_ = Alone::no;
  int rank_ = 0, size_ = 1;
  Transport transport_;
  Account account_;
  std::unique_ptr<Channel> channel_;
  std::unique_ptr<Messages> messages_;
  PlannedLog log_;  // of a planned group
  Registration registration_;
  int message_blocks_ = 0;
};

/// A group of one rank without a communicator: the default where there is nothing to communicate with.
Group& alone();

}  // namespace nanotron::comm
