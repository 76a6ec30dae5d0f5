// Host memory, through MPI.

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <vector>

#include "comm/transport/host_data.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/comm/session/waiting.hpp"
#include "nanotron/comm/transport/channel.hpp"

namespace nanotron::comm {
namespace {

template <DataType type, ReduceOp op>
void reduce_pairs(void* in, void* in_out, int* count, MPI_Datatype*) {
  const std::array<const void*, 2> sources{in, in_out};
  reduce_elements(type, op, sources, static_cast<std::size_t>(*count), in_out, nullptr);
}

// Owns the MPI type and reduction operations of a two-byte type that MPI does not have.
template <DataType type>
class NarrowOperations {
 public:
  NarrowOperations() {
    NANOTRON_CHECK_MPI(MPI_Type_contiguous(2, MPI_BYTE, &type_));
    NANOTRON_CHECK_MPI(MPI_Type_commit(&type_));
    NANOTRON_CHECK_MPI(MPI_Op_create(&reduce_pairs<type, ReduceOp::sum>, 1, &ops_[0]));
    NANOTRON_CHECK_MPI(MPI_Op_create(&reduce_pairs<type, ReduceOp::max>, 1, &ops_[1]));
    NANOTRON_CHECK_MPI(MPI_Op_create(&reduce_pairs<type, ReduceOp::min>, 1, &ops_[2]));
  }
  ~NarrowOperations() {
    for (MPI_Op& op : ops_) MPI_Op_free(&op);
    MPI_Type_free(&type_);
  }
  NarrowOperations(const NarrowOperations&) = delete;
  NarrowOperations& operator=(const NarrowOperations&) = delete;

  MPI_Datatype mpi_type() const { return type_; }
  MPI_Op op(ReduceOp op) const { return ops_[static_cast<std::size_t>(op)]; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
  std::array<MPI_Op, 3> ops_{MPI_OP_NULL, MPI_OP_NULL, MPI_OP_NULL};
};

class MpiChannel final : public Channel {
 public:
  MpiChannel(const Communicator& communicator, std::size_t max_count)
      : comm_(communicator.get()),
        rank_(communicator.rank()),
        size_(communicator.size()),
        max_count_(max_count),
        exchanges_(communicator.get()) {}

  void all_reduce(void* data, std::size_t n, DataType type, ReduceOp op, const Stream&) override {
    in_chunks(n, [&](std::size_t at, int count) {
      NANOTRON_CHECK_TRANSFER(
          MPI_Allreduce(MPI_IN_PLACE, shifted(data, at, type), count, mpi(type), mpi(type, op), comm_));
    });
  }

  void all_gather(const void* send, std::size_t n, void* recv, DataType type, const Stream&) override {
    const auto mine = static_cast<std::size_t>(rank_) * n;
    const bool in_place = send == shifted(recv, mine, type);
    if (n <= max_count_) {
      const int count = static_cast<int>(n);
      NANOTRON_CHECK_TRANSFER(
          MPI_Allgather(in_place ? MPI_IN_PLACE : send, count, mpi(type), recv, count, mpi(type), comm_));
      return;
    }
    if (!in_place) {
      std::copy_n(static_cast<const std::byte*>(send), n * bytes_of(type),
                  static_cast<std::byte*>(shifted(recv, mine, type)));
    }
    for (int root = 0; root < size_; ++root) {
      broadcast(shifted(recv, static_cast<std::size_t>(root) * n, type), n, type, root, {});
    }
  }

  void reduce_scatter(void* send, void* recv, std::size_t n, DataType type, ReduceOp op, const Stream&) override {
    const std::size_t all = n * static_cast<std::size_t>(size_);
    const void* result = send;
    if (all <= max_count_) {  // in place, so that recv may be inside send; the result is at the front
      NANOTRON_CHECK_TRANSFER(
          MPI_Reduce_scatter_block(MPI_IN_PLACE, send, static_cast<int>(n), mpi(type), mpi(type, op), comm_));
    } else {  // count exceeds an int: all-reduce in chunks, twice the traffic
      all_reduce(send, all, type, op, {});
      result = shifted(send, static_cast<std::size_t>(rank_) * n, type);
    }
    if (recv != result) std::memmove(recv, result, n * bytes_of(type));
  }

  void broadcast(void* data, std::size_t n, DataType type, int root, const Stream&) override {
    in_chunks(n, [&](std::size_t at, int count) {
      NANOTRON_CHECK_TRANSFER(MPI_Bcast(shifted(data, at, type), count, mpi(type), root, comm_));
    });
  }

  void all_to_all(const void* send, std::span<const std::size_t> send_counts, void* recv,
                  std::span<const std::size_t> recv_counts, DataType type, const Stream&) override {
    pairwise_exchange(comm_, send, send_counts, recv, recv_counts, type, max_count_);
  }

  std::uint64_t start_all_reduce(void* data, std::size_t n, DataType type, ReduceOp op, const Stream&) override {
    std::size_t chunks = 0;
    in_chunks(n, [&](std::size_t at, int count) {
      MPI_Request request = MPI_REQUEST_NULL;
      NANOTRON_CHECK_TRANSFER(
          MPI_Iallreduce(MPI_IN_PLACE, shifted(data, at, type), count, mpi(type), mpi(type, op), comm_, &request));
      running_.push_back({request, ++chunks * max_count_ >= n ? started_ + 1 : 0});
    });
    return ++started_;
  }

  std::uint64_t start_all_gather(const void* send, std::size_t n, void* recv, DataType type,
                                 const Stream& stream) override {
    if (n > max_count_) return complete_at_once([&] { all_gather(send, n, recv, type, stream); });
    const bool in_place = send == shifted(recv, static_cast<std::size_t>(rank_) * n, type);
    MPI_Request request = MPI_REQUEST_NULL;
    NANOTRON_CHECK_TRANSFER(MPI_Iallgather(in_place ? MPI_IN_PLACE : send, static_cast<int>(n), mpi(type), recv,
                                           static_cast<int>(n), mpi(type), comm_, &request));
    running_.push_back({request, started_ + 1});
    return ++started_;
  }

  std::uint64_t start_reduce_scatter(void* send, void* recv, std::size_t n, DataType type, ReduceOp op,
                                     const Stream& stream) override {
    const std::size_t all = n * static_cast<std::size_t>(size_);
    if (all > max_count_) return complete_at_once([&] { reduce_scatter(send, recv, n, type, op, stream); });
    const auto* const first = static_cast<const std::byte*>(send);
    const bool overlaps = recv >= first && recv < first + all * bytes_of(type);
    MPI_Request request = MPI_REQUEST_NULL;
    NANOTRON_CHECK_TRANSFER(MPI_Ireduce_scatter_block(overlaps ? MPI_IN_PLACE : send, overlaps ? send : recv,
                                                      static_cast<int>(n), mpi(type), mpi(type, op), comm_, &request));
    running_.push_back({request, started_ + 1, {send, overlaps ? recv : send, n * bytes_of(type)}});
    return ++started_;
  }

  std::uint64_t start_all_to_all(const void* send, std::size_t n, void* recv, DataType type, const Stream&) override {
    if (n > max_count_) {
      const std::vector<std::size_t> counts(static_cast<std::size_t>(size_), n);
      return complete_at_once([&] { pairwise_exchange(comm_, send, counts, recv, counts, type, max_count_); });
    }
    const int count = static_cast<int>(n);
    MPI_Request request = MPI_REQUEST_NULL;
    NANOTRON_CHECK_TRANSFER(MPI_Ialltoall(send, count, mpi(type), recv, count, mpi(type), comm_, &request));
    running_.push_back({request, started_ + 1});
    return ++started_;
  }

  std::uint64_t start_all_to_all(const void* send, std::span<const std::size_t> send_counts, void* recv,
                                 std::span<const std::size_t> recv_counts, DataType type, const StreamPoint&) override {
    return exchanges_.start(send, send_counts, recv, recv_counts, type, max_count_);
  }

  // Operations complete in the order of their starts; any MPI call progresses all of them.
  bool test(std::uint64_t ticket) override {
    if (StartedExchanges::owns(ticket)) return exchanges_.test(ticket);
    while (complete_ < ticket) {
      int done = 0;
      NANOTRON_CHECK_TRANSFER(MPI_Test(&running_.front().request, &done, MPI_STATUS_IGNORE));
      if (!done) return false;
      pop();
    }
    return true;
  }

  void wait(std::uint64_t ticket) override {
    if (StartedExchanges::owns(ticket)) {
      for (Pause pause; !exchanges_.test(ticket);) pause();
      return;
    }
    while (complete_ < ticket) {
      NANOTRON_CHECK_TRANSFER(MPI_Wait(&running_.front().request, MPI_STATUS_IGNORE));
      pop();
    }
  }

  std::string path() const override { return "MPI"; }
  std::size_t staging_bytes() const override { return 0; }

 private:
  // Copy after completion: MPI's in-place reduce-scatter leaves the result at the front of the buffer.
  struct Move {
    const void* from = nullptr;
    void* to = nullptr;
    std::size_t bytes = 0;
  };

  struct Running {
    MPI_Request request;
    std::uint64_t ends;  // the ticket that this chunk completes; 0 if it is not the last chunk
    Move next{};
  };

  void pop() {
    const Move& move = running_.front().next;
    if (move.from != move.to) std::memmove(move.to, move.from, move.bytes);
    complete_ = std::max(complete_, running_.front().ends);
    running_.pop_front();
  }

  // Runs after all started operations complete, so that every rank calls MPI in the same order.
  template <class F>
  std::uint64_t complete_at_once(F&& call) {
    wait(started_);
    call();
    complete_ = ++started_;
    return started_;
  }

  template <class F>
  void in_chunks(std::size_t n, F&& call) const {
    std::size_t at = 0;
    do {
      const std::size_t count = std::min(n - at, max_count_);
      call(at, static_cast<int>(count));
      at += count;
    } while (at < n);
  }

  static void* shifted(void* data, std::size_t elements, DataType type) {
    return static_cast<std::byte*>(data) + elements * bytes_of(type);
  }

  MPI_Datatype mpi(DataType type) const {
    switch (type) {
      case DataType::fp64:
        return MPI_DOUBLE;
      case DataType::fp32:
        return MPI_FLOAT;
      case DataType::int64:
        return MPI_INT64_T;
      case DataType::uint64:
        return MPI_UINT64_T;
      case DataType::fp16:
        return fp16_.mpi_type();
      default:
        return bf16_.mpi_type();
    }
  }

  MPI_Op mpi(DataType type, ReduceOp op) const {
    if (type == DataType::bf16) return bf16_.op(op);
    if (type == DataType::fp16) return fp16_.op(op);
    return op == ReduceOp::sum ? MPI_SUM : op == ReduceOp::max ? MPI_MAX : MPI_MIN;
  }

  MPI_Comm comm_;
  int rank_;
  int size_;
  std::size_t max_count_;
  StartedExchanges exchanges_;
  NarrowOperations<DataType::bf16> bf16_;
  NarrowOperations<DataType::fp16> fp16_;
  std::deque<Running> running_;
  std::uint64_t started_ = 0;
  std::uint64_t complete_ = 0;
};

}  // namespace

std::unique_ptr<Channel> make_mpi_channel(const Communicator& communicator, std::size_t max_count) {
  return std::make_unique<MpiChannel>(communicator, max_count);
}

}  // namespace nanotron::comm
