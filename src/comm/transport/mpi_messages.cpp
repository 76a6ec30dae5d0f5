// Host memory, through MPI.

#include <algorithm>
#include <array>
#include <vector>

#include "comm/transport/host_data.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/comm/transport/messages.hpp"

namespace nanotron::comm {
namespace {

constexpr std::size_t tickets = 64;  // allocated in advance; the number of messages in flight depends on timing
constexpr std::size_t chunk_bytes = std::size_t{1} << 30;  // an MPI count is an int

// With two ranks next and previous are the same rank: the tag tells the direction around the ring.
enum Way { up, down };

int tag_of(int lane, Way way) { return 2 * lane + way; }

class MpiMessages final : public Messages {
 public:
  explicit MpiMessages(const Communicator& communicator)
      : comm_(communicator.get()), rank_(communicator.rank()), size_(communicator.size()), running_(tickets) {
    for (std::uint64_t ticket = 0; ticket < tickets; ++ticket) {
      running_[ticket].reserve(1);
      free_.push_back(ticket);
    }
  }

  std::uint64_t start_send(const void* data, std::size_t bytes, Neighbour to, int lane, const Stream&) override {
    const auto* const from = static_cast<const std::byte*>(data);
    return in_chunks(bytes, [&](std::size_t at, int count, MPI_Request& request) {
      NANOTRON_CHECK_TRANSFER(MPI_Isend(from + at, count, MPI_BYTE, rank_of(to),
                                        tag_of(lane, to == Neighbour::next ? up : down), comm_, &request));
    });
  }

  std::uint64_t start_receive(void* data, std::size_t bytes, Neighbour from, int lane, const Stream&) override {
    auto* const to = static_cast<std::byte*>(data);
    return in_chunks(bytes, [&](std::size_t at, int count, MPI_Request& request) {
      NANOTRON_CHECK_TRANSFER(MPI_Irecv(to + at, count, MPI_BYTE, rank_of(from),
                                        tag_of(lane, from == Neighbour::previous ? up : down), comm_, &request));
    });
  }

  bool test(std::uint64_t ticket) override {
    std::vector<MPI_Request>& chunks = running_[ticket];
    int done = 0;
    NANOTRON_CHECK_TRANSFER(MPI_Testall(static_cast<int>(chunks.size()), chunks.data(), &done, MPI_STATUSES_IGNORE));
    if (done) free_.push_back(ticket);
    return done != 0;
  }

  void wait(std::uint64_t ticket) override {
    std::vector<MPI_Request>& chunks = running_[ticket];
    NANOTRON_CHECK_TRANSFER(MPI_Waitall(static_cast<int>(chunks.size()), chunks.data(), MPI_STATUSES_IGNORE));
    free_.push_back(ticket);
  }

 private:
  int rank_of(Neighbour neighbour) const { return (rank_ + (neighbour == Neighbour::next ? 1 : size_ - 1)) % size_; }

  template <class Start>
  std::uint64_t in_chunks(std::size_t bytes, Start&& start) {
    const std::uint64_t ticket = take_ticket();
    std::vector<MPI_Request>& chunks = running_[ticket];
    chunks.assign((bytes + chunk_bytes - 1) / chunk_bytes, MPI_REQUEST_NULL);
    for (std::size_t p = 0; p < chunks.size(); ++p) {
      const std::size_t at = p * chunk_bytes;
      start(at, static_cast<int>(std::min(chunk_bytes, bytes - at)), chunks[p]);
    }
    return ticket;
  }

  std::uint64_t take_ticket() {
    if (free_.empty()) {
      running_.emplace_back();
      free_.reserve(running_.size());
      return running_.size() - 1;
    }
    const std::uint64_t ticket = free_.back();
    free_.pop_back();
    return ticket;
  }

  MPI_Comm comm_;
  int rank_;
  int size_;
  std::vector<std::vector<MPI_Request>> running_;  // by ticket
  std::vector<std::uint64_t> free_;
};

}  // namespace

std::unique_ptr<Messages> make_mpi_messages(const Communicator& communicator) {
  return std::make_unique<MpiMessages>(communicator);
}

}  // namespace nanotron::comm
