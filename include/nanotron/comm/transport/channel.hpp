#pragma once

// The interface that collectives.hpp calls: one class per way of moving the data of a group.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "nanotron/base/types.hpp"
#include "nanotron/comm/group.hpp"
#include "nanotron/comm/transport/messages.hpp"

namespace nanotron::comm {

enum class DataType { fp64, fp32, bf16, fp16, int64, uint64 };

constexpr std::size_t bytes_of(DataType type) {
  return type == DataType::fp32 ? 4 : type == DataType::bf16 || type == DataType::fp16 ? 2 : 8;
}

/// Contracts as in collectives.hpp, for groups of two or more ranks.
class Channel : public Operations {
 public:
  virtual void all_reduce(void* data, std::size_t n, DataType type, ReduceOp op, const Stream& stream) = 0;
  virtual void all_gather(const void* send, std::size_t n, void* recv, DataType type, const Stream& stream) = 0;
  virtual void reduce_scatter(void* send, void* recv, std::size_t n, DataType type, ReduceOp op,
                              const Stream& stream) = 0;
  virtual void broadcast(void* data, std::size_t n, DataType type, int root, const Stream& stream) = 0;
  virtual void all_to_all(const void* send, std::span<const std::size_t> send_counts, void* recv,
                          std::span<const std::size_t> recv_counts, DataType type, const Stream& stream) = 0;

  /// Each returns the operation's ticket for test and wait.
  virtual std::uint64_t start_all_reduce(void* data, std::size_t n, DataType type, ReduceOp op,
                                         const Stream& stream) = 0;
  virtual std::uint64_t start_all_gather(const void* send, std::size_t n, void* recv, DataType type,
                                         const Stream& stream) = 0;
  virtual std::uint64_t start_reduce_scatter(void* send, void* recv, std::size_t n, DataType type, ReduceOp op,
                                             const Stream& stream) = 0;
  virtual std::uint64_t start_all_to_all(const void* send, std::size_t n, void* recv, DataType type,
                                         const Stream& stream) = 0;
  virtual std::uint64_t start_all_to_all(const void* send, std::span<const std::size_t> send_counts, void* recv,
                                         std::span<const std::size_t> recv_counts, DataType type,
                                         const StreamPoint& after) = 0;
  /// For StreamPoint; on the host nothing is queued.
  virtual std::uint64_t mark(const Stream&) { return 0; }
  virtual std::string path() const = 0;
  virtual std::size_t staging_bytes() const = 0;
};

/// Of a planned group of this many ranks, two or more.
std::unique_ptr<Channel> make_planned_channel(int ranks, const PlannedLog& log);

// Each of these functions is collective over the communicator, which must outlive the channel.

/// max_count: max elements per MPI call.
std::unique_ptr<Channel> make_mpi_channel(const Communicator& communicator,
                                          std::size_t max_count = std::size_t{1} << 30);
/// Sums over ranks in a binary tree (tree_channel.cpp); `host` moves the data.
std::unique_ptr<Channel> make_tree_channel(const Communicator& communicator, std::unique_ptr<Channel> host);
/// Null on every rank when the ranks are not all on one node or shared memory cannot be allocated.
std::unique_ptr<Channel> make_shared_memory_channel(const Communicator& communicator);
#ifdef NANOTRON_WITH_GPU
std::unique_ptr<Channel> make_nccl_channel(const Communicator& communicator, deck::CollectiveEngine engine);
/// GPU memory, copied through a pinned host buffer that `host` moves.
std::unique_ptr<Channel> make_staged_channel(const Communicator& communicator, std::unique_ptr<Channel> host);
#endif

}  // namespace nanotron::comm
