// GPU memory, through NCCL. Each direction of each link of the ring has its own communicator of two ranks and its own
// stream in each lane: on a shared one a send without a receive yet could block the receive its peer waits for.
// So it could on communicators that share resources (ncclCommSplit with splitShare): NCCL queues all their kernels
// one after another on one stream (2.30.7, src/enqueue.cc, sharedRes->deviceStream).

#include <array>
#include <utility>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/transport/messages.hpp"
#include "nanotron/comm/transport/nccl_memory.hpp"
#include "nccl_communicator.hpp"
#include "stream_order.hpp"

namespace nanotron::comm {
namespace {

constexpr int sender = 0, receiver = 1;  // ranks of a link's communicator

// NCCL connects two ranks at their first message, in calls that block the host of each until the other makes its own
// (ncclTransportP2pSetup). Both are here: a byte goes through the link.
void use_once(const NcclCommunicator& link, int role) {
  void* byte = nullptr;
  NANOTRON_CHECK_GPU(gpuMalloc(&byte, 1));
  NANOTRON_CHECK_GPU(gpuMemsetAsync(byte, 0, 1, link.stream()));
  NANOTRON_CHECK_NCCL(role == sender ? ncclSend(byte, 1, ncclInt8, receiver, link.comm(), link.stream())
                                     : ncclRecv(byte, 1, ncclInt8, sender, link.comm(), link.stream()));
  NANOTRON_CHECK_GPU(gpuStreamSynchronize(link.stream()));
  NANOTRON_CHECK_GPU(gpuFree(byte));
}

// One direction of one link. Collective over the two ends. peer: rank of the other end; role: sender or receiver.
std::unique_ptr<NcclCommunicator> connect(const Communicator& ring, int peer, int role, int tag, int blocks) {
  ncclUniqueId id{};
  if (role == sender) {
    NANOTRON_CHECK_NCCL(ncclGetUniqueId(&id));
    NANOTRON_CHECK_MPI(MPI_Send(&id, sizeof id, MPI_BYTE, peer, tag, ring.get()));
  } else {
    NANOTRON_CHECK_MPI(MPI_Recv(&id, sizeof id, MPI_BYTE, peer, tag, ring.get(), MPI_STATUS_IGNORE));
  }
  const NcclResources resources{.message_blocks = blocks_of_messages(blocks)};
  auto link = std::make_unique<NcclCommunicator>(id, 2, role, resources);
  use_once(*link, role);
  return link;
}

// Links that join different ranks are made at the same time: those of even p, those of odd p, and in a ring of an odd
// size the last one, which has a rank in common with either.
int wave_of(int link, int size) { return size % 2 == 1 && link == size - 1 ? 2 : link % 2; }

// This rank's two links in one lane, two directions each. Link p joins ranks p and p + 1. Every rank makes its links,
// and ends them, wave by wave: each of both waits for the peer, and in a ring another order could be a circle of waits.
class LaneLinks {
 public:
  LaneLinks(const Communicator& ring, int lane, int blocks) {
    const int size = ring.size(), rank = ring.rank();
    std::array<int, 2> links{rank, (rank + size - 1) % size};  // to the next rank, to the previous one
    if (wave_of(links[1], size) < wave_of(links[0], size)) std::swap(links[0], links[1]);
    for (const int link : links) {
      const int low = link, high = (link + 1) % size, tag = 2 * (lane * size + link);
      if (rank == low) {
        to_next_ = add(connect(ring, high, sender, tag, blocks));
        from_next_ = add(connect(ring, high, receiver, tag + 1, blocks));
      }
      if (rank == high) {
        from_previous_ = add(connect(ring, low, receiver, tag, blocks));
        to_previous_ = add(connect(ring, low, sender, tag + 1, blocks));
      }
    }
  }
  ~LaneLinks() {
    for (std::unique_ptr<NcclCommunicator>& communicator : made_) communicator.reset();
  }
  LaneLinks(const LaneLinks&) = delete;
  LaneLinks& operator=(const LaneLinks&) = delete;

  const NcclCommunicator& out(Neighbour to) const { return to == Neighbour::next ? *to_next_ : *to_previous_; }
  const NcclCommunicator& in(Neighbour from) const { return from == Neighbour::next ? *from_next_ : *from_previous_; }

  void register_memory(const Registration& registration) {
    for (std::unique_ptr<NcclCommunicator>& communicator : made_) communicator->register_memory(registration);
  }

 private:
  const NcclCommunicator* add(std::unique_ptr<NcclCommunicator> communicator) {
    return made_.emplace_back(std::move(communicator)).get();
  }

  std::vector<std::unique_ptr<NcclCommunicator>> made_;  // in the order of their making
  const NcclCommunicator *to_next_ = nullptr, *from_next_ = nullptr, *to_previous_ = nullptr, *from_previous_ = nullptr;
};

class NcclMessages final : public Messages {
 public:
  NcclMessages(const Communicator& ring, int blocks) : lanes_{LaneLinks(ring, 0, blocks), LaneLinks(ring, 1, blocks)} {}

  std::uint64_t start_send(const void* data, std::size_t bytes, Neighbour to, int lane, const Stream& stream) override {
    const NcclCommunicator& way = links(lane).out(to);
    return order_.after(stream, way.stream(), [&] {
      NANOTRON_CHECK_NCCL(ncclSend(data, bytes, ncclInt8, receiver, way.comm(), way.stream()));
    });
  }

  std::uint64_t start_receive(void* data, std::size_t bytes, Neighbour from, int lane, const Stream& stream) override {
    const NcclCommunicator& way = links(lane).in(from);
    return order_.after(stream, way.stream(), [&] {
      NANOTRON_CHECK_NCCL(ncclRecv(data, bytes, ncclInt8, sender, way.comm(), way.stream()));
    });
  }

  bool test(std::uint64_t ticket) override { return order_.test(ticket); }
  void wait(std::uint64_t ticket) override { order_.wait(ticket); }

  void register_memory(const Registration& registration) override {
    const Registration of_rank = by_rank(registration);
    for (LaneLinks& lane : lanes_) lane.register_memory(of_rank);
  }

 private:
  const LaneLinks& links(int lane) const { return lanes_[static_cast<std::size_t>(lane)]; }

  std::array<LaneLinks, message_lanes> lanes_;
  StreamOrder order_;
};

}  // namespace

std::unique_ptr<Messages> make_nccl_messages(const Communicator& communicator, int blocks) {
  return std::make_unique<NcclMessages>(communicator, blocks);
}

}  // namespace nanotron::comm
