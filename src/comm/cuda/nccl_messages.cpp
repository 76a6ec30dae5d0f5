// GPU memory by NCCL. Every way of every link of the ring has a communicator of two ranks and a stream of its
// own: on a shared one, a send that nobody receives yet would hold up the receive its receiver waits for.

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <exception>
#include <map>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/messages.hpp"
#include "comm/cuda/stream_order.hpp"

namespace nanotron::comm {
namespace {

constexpr int sender = 0, receiver = 1;  // ranks of a link's communicator

// One way of one link. Owns its communicator and stream.
class Way {
 public:
  /// Collective over the two ends: `peer` is the other end's rank, `role` what this one does.
  Way(const Communicator& ring, int peer, int role, int tag) {
    ncclUniqueId id{};
    if (role == sender) {
      NANOTRON_CHECK_NCCL(ncclGetUniqueId(&id));
      NANOTRON_CHECK_MPI(MPI_Send(&id, sizeof id, MPI_BYTE, peer, tag, ring.get()));
    } else {
      NANOTRON_CHECK_MPI(MPI_Recv(&id, sizeof id, MPI_BYTE, peer, tag, ring.get(), MPI_STATUS_IGNORE));
    }
    NANOTRON_CHECK_NCCL(ncclCommInitRank(&comm_, 2, id, role));
    int least = 0, greatest = 0;
    NANOTRON_CHECK_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    NANOTRON_CHECK_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest));
  }
  ~Way() {
    if (std::uncaught_exceptions() > 0) {
      ncclCommAbort(comm_);
    } else {
      cudaStreamSynchronize(stream_);
      ncclCommDestroy(comm_);
    }
    cudaStreamDestroy(stream_);
  }
  Way(const Way&) = delete;
  Way& operator=(const Way&) = delete;

  ncclComm_t comm() const { return comm_; }
  cudaStream_t stream() const { return stream_; }

 private:
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

// The four ways of this rank in one lane.
struct Lane {
  std::unique_ptr<Way> to_next, from_next, to_previous, from_previous;

  // Link p joins p and p + 1. All ranks pass the links in one order, so that nobody waits in a circle.
  explicit Lane(const Communicator& communicator) {
    const int size = communicator.size(), rank = communicator.rank();
    for (int link = 0; link < size; ++link) {
      const int low = link, high = (link + 1) % size;
      if (rank == low) {
        to_next = std::make_unique<Way>(communicator, high, sender, 2 * link);
        from_next = std::make_unique<Way>(communicator, high, receiver, 2 * link + 1);
      }
      if (rank == high) {
        from_previous = std::make_unique<Way>(communicator, low, receiver, 2 * link);
        to_previous = std::make_unique<Way>(communicator, low, sender, 2 * link + 1);
      }
    }
  }
};

class NcclMessages final : public Messages {
 public:
  explicit NcclMessages(const Communicator& communicator) : communicator_(&communicator) {}

  std::uint64_t start_send(const void* data, std::size_t bytes, Neighbour to, int lane, const Stream& stream) override {
    const Way& way = *(to == Neighbour::next ? connected(lane).to_next : connected(lane).to_previous);
    return order_.behind(stream, way.stream(), [&] {
      NANOTRON_CHECK_NCCL(ncclSend(data, bytes, ncclInt8, receiver, way.comm(), way.stream()));
    });
  }

  std::uint64_t start_receive(void* data, std::size_t bytes, Neighbour from, int lane, const Stream& stream) override {
    const Way& way = *(from == Neighbour::next ? connected(lane).from_next : connected(lane).from_previous);
    return order_.behind(stream, way.stream(), [&] {
      NANOTRON_CHECK_NCCL(ncclRecv(data, bytes, ncclInt8, sender, way.comm(), way.stream()));
    });
  }

  bool test(std::uint64_t ticket) override { return order_.test(ticket); }
  void wait(std::uint64_t ticket) override { order_.wait(ticket); }

 private:
  const Lane& connected(int lane) {
    std::unique_ptr<Lane>& made = lanes_[lane];
    if (!made) made = std::make_unique<Lane>(*communicator_);
    return *made;
  }

  const Communicator* communicator_;
  std::map<int, std::unique_ptr<Lane>> lanes_;
  StreamOrder order_;
};

}  // namespace

std::unique_ptr<Messages> make_nccl_messages(const Communicator& communicator) {
  return std::make_unique<NcclMessages>(communicator);
}

}  // namespace nanotron::comm
