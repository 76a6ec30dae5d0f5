// Sums in a binary tree over the ranks that adds neighbours in pairs; a rank's addend is a leaf, and may be a node of a
// larger tree (tensor/sum_order.hpp). all-reduce = all-to-all, tree sum of this rank's part, all-gather; reduce-scatter
// omits the all-gather. All else goes to the host channel. Started operations complete at once, except all-to-alls with
// a count for each rank.

#include <algorithm>
#include <utility>
#include <vector>

#include "comm/transport/host_data.hpp"
#include "nanotron/comm/transport/channel.hpp"

namespace nanotron::comm {
namespace {

constexpr std::size_t buffer_bytes = std::size_t{4} << 20;

class TreeChannel final : public Channel {
 public:
  TreeChannel(const Communicator& communicator, std::unique_ptr<Channel> host)
      : host_(std::move(host)),
        size_(static_cast<std::size_t>(communicator.size())),
        counts_(size_),
        send_(buffer_bytes),
        receive_(buffer_bytes) {}

  void all_reduce(void* data, std::size_t n, DataType type, ReduceOp op, const Stream& stream) override {
    if (op != ReduceOp::sum) return host_->all_reduce(data, n, type, op, stream);
    std::byte* const bytes = static_cast<std::byte*>(data);
    const std::size_t element = bytes_of(type), most = buffer_bytes / element / size_ * size_;
    for (std::size_t at = 0; at < n; at += most) {
      const std::size_t count = std::min(most, n - at), each = count / size_, rest = count % size_;
      std::byte* const piece = bytes + at * element;
      if (each > 0) {
        std::fill(counts_.begin(), counts_.end(), each);
        host_->all_to_all(piece, counts_, receive_.data(), counts_, type, stream);
        add_up(each, type);
        host_->all_gather(receive_.data(), each, piece, type, stream);
      }
      if (rest > 0) {
        std::byte* const tail = piece + each * size_ * element;
        host_->all_gather(tail, rest, receive_.data(), type, stream);
        add_up(rest, type);
        std::copy_n(receive_.data(), rest * element, tail);
      }
    }
  }

  void reduce_scatter(void* send, void* recv, std::size_t n, DataType type, ReduceOp op,
                      const Stream& stream) override {
    if (op != ReduceOp::sum) return host_->reduce_scatter(send, recv, n, type, op, stream);
    const std::size_t element = bytes_of(type), most = buffer_bytes / element / size_;
    const std::byte* const from = static_cast<const std::byte*>(send);
    for (std::size_t at = 0; at < n; at += most) {
      const std::size_t count = std::min(most, n - at);
      for (std::size_t r = 0; r < size_; ++r) {
        std::copy_n(from + (r * n + at) * element, count * element, send_.data() + r * count * element);
      }
      std::fill(counts_.begin(), counts_.end(), count);
      host_->all_to_all(send_.data(), counts_, receive_.data(), counts_, type, stream);
      add_up(count, type);
      std::copy_n(receive_.data(), count * element, static_cast<std::byte*>(recv) + at * element);
    }
  }

  void all_gather(const void* send, std::size_t n, void* recv, DataType type, const Stream& stream) override {
    host_->all_gather(send, n, recv, type, stream);
  }
  void broadcast(void* data, std::size_t n, DataType type, int root, const Stream& stream) override {
    host_->broadcast(data, n, type, root, stream);
  }
  void all_to_all(const void* send, std::span<const std::size_t> send_counts, void* recv,
                  std::span<const std::size_t> recv_counts, DataType type, const Stream& stream) override {
    host_->all_to_all(send, send_counts, recv, recv_counts, type, stream);
  }

  std::uint64_t start_all_reduce(void* data, std::size_t n, DataType type, ReduceOp op, const Stream& stream) override {
    all_reduce(data, n, type, op, stream);
    return complete;
  }
  std::uint64_t start_all_gather(const void* send, std::size_t n, void* recv, DataType type,
                                 const Stream& stream) override {
    all_gather(send, n, recv, type, stream);
    return complete;
  }
  std::uint64_t start_reduce_scatter(void* send, void* recv, std::size_t n, DataType type, ReduceOp op,
                                     const Stream& stream) override {
    reduce_scatter(send, recv, n, type, op, stream);
    return complete;
  }
  std::uint64_t start_all_to_all(const void* send, std::size_t n, void* recv, DataType type,
                                 const Stream& stream) override {
    std::fill(counts_.begin(), counts_.end(), n);
    all_to_all(send, counts_, recv, counts_, type, stream);
    return complete;
  }
  // Not a sum: the only operation that runs on. Its tickets are not 0.
  std::uint64_t start_all_to_all(const void* send, std::span<const std::size_t> send_counts, void* recv,
                                 std::span<const std::size_t> recv_counts, DataType type,
                                 const StreamPoint& after) override {
    return host_->start_all_to_all(send, send_counts, recv, recv_counts, type, after);
  }
  bool test(std::uint64_t ticket) override { return ticket == complete || host_->test(ticket); }
  void wait(std::uint64_t ticket) override {
    if (ticket != complete) host_->wait(ticket);
  }
  std::string path() const override { return host_->path() + ", tree reduction"; }
  std::size_t staging_bytes() const override { return host_->staging_bytes() + send_.size() + receive_.size(); }

 private:
  static constexpr std::uint64_t complete = 0;

  // receive_ holds n elements of each rank. Adds them up into the first n.
  void add_up(std::size_t n, DataType type) {
    const std::size_t bytes = n * bytes_of(type);
    for (std::size_t step = 1; step < size_; step *= 2) {
      for (std::size_t r = 0; r + step < size_; r += 2 * step) {
        std::byte* const sum = receive_.data() + r * bytes;
        const void* const two[] = {sum, receive_.data() + (r + step) * bytes};
        reduce_elements(type, ReduceOp::sum, two, n, sum, nullptr);
      }
    }
  }

  std::unique_ptr<Channel> host_;
  std::size_t size_;
  std::vector<std::size_t> counts_;
  std::vector<std::byte> send_, receive_;
};

}  // namespace

std::unique_ptr<Channel> make_tree_channel(const Communicator& communicator, std::unique_ptr<Channel> host) {
  return std::make_unique<TreeChannel>(communicator, std::move(host));
}

}  // namespace nanotron::comm
