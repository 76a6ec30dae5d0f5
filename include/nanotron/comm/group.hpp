#pragma once

// A group of ranks and the way they exchange data.

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "nanotron/comm/communicator.hpp"
#include "nanotron/deck/config.hpp"

struct CUstream_st;

namespace nanotron::comm {

/// A queue of GPU work that a collective is ordered with; not owned. Empty on the host.
class Stream {
 public:
  Stream() = default;
  explicit Stream(CUstream_st* handle) : handle_(handle) {}
  CUstream_st* get() const { return handle_; }

 private:
  CUstream_st* handle_ = nullptr;
};

enum class ReduceOp { sum, max, min };

enum class Transport {
  mpi,         // host memory: shared memory where all ranks share a node, MPI otherwise
  nccl,        // GPU memory, one GPU per rank
  staged_mpi,  // GPU memory, copied through pinned host buffers: ranks that share a GPU
};
const char* name_of(Transport transport);

/// In which order sums run: as suits the transport, or in a binary tree over the ranks, neighbours in pairs
/// (tensor/sum_order.hpp). The latter goes through host memory.
enum class Sums { any_order, tree };

/// The transport for parallel%backend. On the host always mpi. In a CUDA build: 'auto' is nccl when no two ranks
/// use the same GPU, staged_mpi otherwise; 'mpi' is staged_mpi. Error(deck_error) for 'nccl' without
/// CUDA, or with two ranks on one GPU. Collective; in a CUDA build call it after the GPU is selected.
Transport choose_transport(deck::Backend backend, const Communicator& world);

/// The GPU for this rank: its rank within its node modulo the GPUs it sees; -1 when there is none.
/// Collective over world. Give it to Kokkos (device id) before anything touches a GPU.
int gpu_of_rank(const Communicator& world);

/// What went through a group: payload this rank handed in (of messages what it sent), host seconds inside the calls (queueing
/// alone for nccl). Asynchronous operations count once.
struct Traffic {
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;
  double seconds = 0.0;
};

class Channel;   // comm/channel.hpp: one implementation per transport
class Messages;  // comm/messages.hpp

/// Owns a communicator and what its transport needs (NCCL communicator, staging memory), taken when the
/// group is made. Making it is collective; every rank calls the same collectives in the same order. May be
/// moved only while no Request is running.
class Group {
 public:
  Group(Communicator communicator, Transport transport, Sums sums = Sums::any_order);
  /// With a channel of the caller's choice for host memory: for tests and nanotron_bench.
  Group(Communicator communicator, std::unique_ptr<Channel> channel);
  /// A place among `size` ranks without a communicator, to plan with: size(), rank() and, for one rank, collectives, which
  /// do nothing. Everything else is an internal error.
  static Group planned(int size, int rank) { return Group(size, rank); }
  ~Group();
  Group(Group&&) noexcept;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const Communicator& communicator() const { return communicator_; }
  /// For host data outside the collectives of this layer.
  MPI_Comm mpi() const;
  Transport transport() const { return transport_; }
  Traffic& traffic() { return traffic_; }
  /// How bulk data moves: "shared memory", "MPI", "NCCL", "... through host buffers"; "none" for 1 rank.
  std::string path() const;
  /// Bytes of this rank that the group keeps for staging.
  std::size_t staging_bytes() const;

  /// For collectives.cpp; of groups of two and more ranks that move bulk data.
  Channel& channel();
  /// Made by the first call; for groups of two and more ranks.
  Messages& messages();

 private:
  Group(int size, int rank);

  Communicator communicator_;
  int rank_ = 0, size_ = 1;
  Transport transport_;
  Traffic traffic_;
  std::unique_ptr<Channel> channel_;
  std::unique_ptr<Messages> messages_;
};

/// A group of one rank without a communicator, for whoever needs no other.
Group& alone();

}  // namespace nanotron::comm
