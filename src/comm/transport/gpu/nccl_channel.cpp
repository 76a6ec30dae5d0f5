// GPU memory, through NCCL. Blocking calls are queued on the caller's stream. Started ones run on the channel's
// own stream, after what the caller has queued; wait() makes the caller's stream wait for them (StreamOrder).

#include <cstdlib>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/transport/channel.hpp"
#include "nccl_communicator.hpp"
#include "stream_order.hpp"

namespace nanotron::comm {
namespace {

ncclDataType_t nccl(DataType type) {
  switch (type) {
    case DataType::fp64:
      return ncclFloat64;
    case DataType::fp32:
      return ncclFloat32;
    case DataType::bf16:
      return ncclBfloat16;
    case DataType::fp16:
      return ncclFloat16;
    case DataType::int64:
      return ncclInt64;
    default:
      return ncclUint64;
  }
}

ncclRedOp_t nccl(ReduceOp op) { return op == ReduceOp::sum ? ncclSum : op == ReduceOp::max ? ncclMax : ncclMin; }

// Collective. Overlapping groups (tp and dp) run concurrently: all ranks must launch in the same order.
ncclUniqueId shared_id(const Communicator& communicator) {
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  ncclUniqueId id{};
  if (communicator.rank() == 0) NANOTRON_CHECK_NCCL(ncclGetUniqueId(&id));
  NANOTRON_CHECK_MPI(MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, communicator.get()));
  return id;
}

class NcclChannel final : public Channel {
 public:
  NcclChannel(const Communicator& communicator, deck::CollectiveEngine engine)
      : nccl_(shared_id(communicator), communicator.size(), communicator.rank(), {.engine = engine}),
        size_(communicator.size()) {}

  void all_reduce(void* data, std::size_t n, DataType type, ReduceOp op, const Stream& stream) override {
    NANOTRON_CHECK_NCCL(ncclAllReduce(data, data, n, nccl(type), nccl(op), nccl_.comm(), stream.get()));
  }
  void all_gather(const void* send, std::size_t n, void* recv, DataType type, const Stream& stream) override {
    NANOTRON_CHECK_NCCL(ncclAllGather(send, recv, n, nccl(type), nccl_.comm(), stream.get()));
  }
  void reduce_scatter(void* send, void* recv, std::size_t n, DataType type, ReduceOp op,
                      const Stream& stream) override {
    NANOTRON_CHECK_NCCL(ncclReduceScatter(send, recv, n, nccl(type), nccl(op), nccl_.comm(), stream.get()));
  }
  void broadcast(void* data, std::size_t n, DataType type, int root, const Stream& stream) override {
    NANOTRON_CHECK_NCCL(ncclBroadcast(data, data, n, nccl(type), root, nccl_.comm(), stream.get()));
  }

  void all_to_all(const void* send, std::span<const std::size_t> send_counts, void* recv,
                  std::span<const std::size_t> recv_counts, DataType type, const Stream& stream) override {
    exchange(send, recv, type, stream.get(), [&](std::size_t r) { return Counts{send_counts[r], recv_counts[r]}; });
  }

  std::uint64_t start_all_reduce(void* data, std::size_t n, DataType type, ReduceOp op, const Stream& stream) override {
    return order_.after(stream, nccl_.stream(), [&] {
      NANOTRON_CHECK_NCCL(ncclAllReduce(data, data, n, nccl(type), nccl(op), nccl_.comm(), nccl_.stream()));
    });
  }
  std::uint64_t start_all_gather(const void* send, std::size_t n, void* recv, DataType type,
                                 const Stream& stream) override {
    return order_.after(stream, nccl_.stream(), [&] {
      NANOTRON_CHECK_NCCL(ncclAllGather(send, recv, n, nccl(type), nccl_.comm(), nccl_.stream()));
    });
  }
  std::uint64_t start_reduce_scatter(void* send, void* recv, std::size_t n, DataType type, ReduceOp op,
                                     const Stream& stream) override {
    return order_.after(stream, nccl_.stream(), [&] {
      NANOTRON_CHECK_NCCL(ncclReduceScatter(send, recv, n, nccl(type), nccl(op), nccl_.comm(), nccl_.stream()));
    });
  }

  std::uint64_t start_all_to_all(const void* send, std::size_t n, void* recv, DataType type,
                                 const Stream& stream) override {
    return order_.after(stream, nccl_.stream(), [&] {
      exchange(send, recv, type, nccl_.stream(), [n](std::size_t) { return Counts{n, n}; });
    });
  }

  std::uint64_t start_all_to_all(const void* send, std::span<const std::size_t> send_counts, void* recv,
                                 std::span<const std::size_t> recv_counts, DataType type,
                                 const StreamPoint& after) override {
    return order_.after(after.mark() ? *after.mark() : order_.mark(after.stream()), nccl_.stream(), [&] {
      exchange(send, recv, type, nccl_.stream(), [&](std::size_t r) { return Counts{send_counts[r], recv_counts[r]}; });
    });
  }
  std::uint64_t mark(const Stream& stream) override { return order_.mark(stream); }

  bool test(std::uint64_t ticket) override { return order_.test(ticket); }
  void wait(std::uint64_t ticket) override { order_.wait(ticket); }

  void register_memory(const Registration& registration) override { nccl_.register_memory(registration); }

  std::string path() const override { return "NCCL"; }
  std::size_t staging_bytes() const override { return 0; }

 private:
  struct Counts {
    std::size_t sent, received;
  };

  template <class CountsOf>
  void exchange(const void* send, void* recv, DataType type, gpuStream_t stream, const CountsOf& counts_of) {
    const auto* from = static_cast<const std::byte*>(send);
    auto* to = static_cast<std::byte*>(recv);
    NANOTRON_CHECK_NCCL(ncclGroupStart());
    for (int rank = 0; rank < size_; ++rank) {
      const Counts counts = counts_of(static_cast<std::size_t>(rank));
      NANOTRON_CHECK_NCCL(ncclSend(from, counts.sent, nccl(type), rank, nccl_.comm(), stream));
      NANOTRON_CHECK_NCCL(ncclRecv(to, counts.received, nccl(type), rank, nccl_.comm(), stream));
      from += counts.sent * bytes_of(type);
      to += counts.received * bytes_of(type);
    }
    NANOTRON_CHECK_NCCL(ncclGroupEnd());
  }

  NcclCommunicator nccl_;
  int size_;
  StreamOrder order_;
};

}  // namespace

std::unique_ptr<Channel> make_nccl_channel(const Communicator& communicator, deck::CollectiveEngine engine) {
  return std::make_unique<NcclChannel>(communicator, engine);
}

}  // namespace nanotron::comm
