// GPU memory, through NCCL. Each direction (way) of each link of the ring has its own communicator of two ranks and
// its own CUDA stream: on a shared one a send without a receive yet could block the receive its peer waits for.

#include <map>

#include "comm/cuda/nccl_communicator.hpp"
#include "comm/cuda/stream_order.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/comm/messages.hpp"

namespace nanotron::comm {
namespace {

constexpr int sender = 0, receiver = 1;  // ranks of a link's communicator

// One direction of one link. Collective over the two ends. peer: rank of the other end; role: sender or receiver.
std::unique_ptr<NcclCommunicator> connect(const Communicator& ring, int peer, int role, int tag) {
  ncclUniqueId id{};
  if (role == sender) {
    NANOTRON_CHECK_NCCL(ncclGetUniqueId(&id));
    NANOTRON_CHECK_MPI(MPI_Send(&id, sizeof id, MPI_BYTE, peer, tag, ring.get()));
  } else {
    NANOTRON_CHECK_MPI(MPI_Recv(&id, sizeof id, MPI_BYTE, peer, tag, ring.get(), MPI_STATUS_IGNORE));
  }
  return std::make_unique<NcclCommunicator>(id, 2, role);
}

// This rank's two links in one lane, two directions each.
struct Lane {
  std::unique_ptr<NcclCommunicator> to_next, from_next, to_previous, from_previous;

  // Link p joins ranks p and p + 1. All ranks connect the links in the same order, to avoid deadlock.
  explicit Lane(const Communicator& communicator) {
    const int size = communicator.size(), rank = communicator.rank();
    for (int link = 0; link < size; ++link) {
      const int low = link, high = (link + 1) % size;
      if (rank == low) {
        to_next = connect(communicator, high, sender, 2 * link);
        from_next = connect(communicator, high, receiver, 2 * link + 1);
      }
      if (rank == high) {
        from_previous = connect(communicator, low, receiver, 2 * link);
        to_previous = connect(communicator, low, sender, 2 * link + 1);
      }
    }
  }
};

class NcclMessages final : public Messages {
 public:
  explicit NcclMessages(const Communicator& communicator) : communicator_(&communicator) {}

  std::uint64_t start_send(const void* data, std::size_t bytes, Neighbour to, int lane, const Stream& stream) override {
    const NcclCommunicator& way = *(to == Neighbour::next ? connected(lane).to_next : connected(lane).to_previous);
    return order_.behind(stream, way.stream(), [&] {
      NANOTRON_CHECK_NCCL(ncclSend(data, bytes, ncclInt8, receiver, way.comm(), way.stream()));
    });
  }

  std::uint64_t start_receive(void* data, std::size_t bytes, Neighbour from, int lane, const Stream& stream) override {
    const NcclCommunicator& way =
        *(from == Neighbour::next ? connected(lane).from_next : connected(lane).from_previous);
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
