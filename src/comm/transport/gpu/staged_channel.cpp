// GPU memory through a pinned host buffer and a host channel, in chunks. For ranks that share a GPU, which NCCL
// refuses: correct, not fast. Every call waits for its stream; started operations complete at once.

#include <algorithm>
#include <utility>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/base/gpu_api.hpp"
#include "nanotron/comm/transport/channel.hpp"

namespace nanotron::comm {
namespace {

constexpr std::size_t buffer_bytes = std::size_t{16} << 20;

class StagedChannel final : public Channel {
 public:
  StagedChannel(const Communicator& communicator, std::unique_ptr<Channel> host)
      : host_(std::move(host)),
        rank_(static_cast<std::size_t>(communicator.rank())),
        size_(static_cast<std::size_t>(communicator.size())),
        sent_(size_),
        received_(size_),
        equal_(size_) {
    void* memory = nullptr;
    NANOTRON_CHECK_GPU(gpuMallocHost(&memory, buffer_bytes));
    buffer_ = static_cast<std::byte*>(memory);
  }
  ~StagedChannel() override { static_cast<void>(gpuFreeHost(buffer_)); }

  void all_reduce(void* data, std::size_t n, DataType type, ReduceOp op, const Stream& stream) override {
    in_chunks(n, type, 1, [&](std::size_t at, std::size_t count) {
      const std::size_t bytes = count * bytes_of(type);
      std::byte* device = static_cast<std::byte*>(data) + at * bytes_of(type);
      copy(buffer_, device, bytes, stream);
      host_->all_reduce(buffer_, count, type, op, {});
      copy(device, buffer_, bytes, stream);
    });
  }

  void all_gather(const void* send, std::size_t n, void* recv, DataType type, const Stream& stream) override {
    in_chunks(n, type, size_, [&](std::size_t at, std::size_t count) {
      const std::size_t size = bytes_of(type), bytes = count * size;
      copy(buffer_ + rank_ * bytes, static_cast<const std::byte*>(send) + at * size, bytes, stream);
      host_->all_gather(buffer_ + rank_ * bytes, count, buffer_, type, {});
      copy_rows(static_cast<std::byte*>(recv) + at * size, n * size, buffer_, bytes, bytes, stream);
    });
  }

  void reduce_scatter(void* send, void* recv, std::size_t n, DataType type, ReduceOp op,
                      const Stream& stream) override {
    in_chunks(n, type, size_, [&](std::size_t at, std::size_t count) {
      const std::size_t size = bytes_of(type), bytes = count * size;
      copy_rows(buffer_, bytes, static_cast<const std::byte*>(send) + at * size, n * size, bytes, stream);
      std::byte* mine = buffer_ + rank_ * bytes;
      host_->reduce_scatter(buffer_, mine, count, type, op, {});
      copy(static_cast<std::byte*>(recv) + at * size, mine, bytes, stream);
    });
  }

  void broadcast(void* data, std::size_t n, DataType type, int root, const Stream& stream) override {
    in_chunks(n, type, 1, [&](std::size_t at, std::size_t count) {
      const std::size_t bytes = count * bytes_of(type);
      std::byte* device = static_cast<std::byte*>(data) + at * bytes_of(type);
      const bool sends = rank_ == static_cast<std::size_t>(root);
      if (sends) copy(buffer_, device, bytes, stream);
      host_->broadcast(buffer_, count, type, root, {});
      if (!sends) copy(device, buffer_, bytes, stream);
    });
  }

  // In rounds of one chunk per pair of ranks. Both ranks of a pair know when its data is complete.
  void all_to_all(const void* send, std::span<const std::size_t> send_counts, void* recv,
                  std::span<const std::size_t> recv_counts, DataType type, const Stream& stream) override {
    const std::size_t size = bytes_of(type), chunk = buffer_bytes / 2 / size_ / size;
    const std::size_t most = std::max(*std::max_element(send_counts.begin(), send_counts.end()),
                                      *std::max_element(recv_counts.begin(), recv_counts.end()));
    std::byte* const in = buffer_ + buffer_bytes / 2;
    for (std::size_t at = 0; at < most; at += chunk) {
      const auto* from = static_cast<const std::byte*>(send);
      std::byte* packed = buffer_;
      for (std::size_t r = 0; r < size_; from += send_counts[r++] * size) {
        sent_[r] = std::min(chunk, send_counts[r] - std::min(at, send_counts[r]));
        received_[r] = std::min(chunk, recv_counts[r] - std::min(at, recv_counts[r]));
        copy(packed, from + at * size, sent_[r] * size, stream);
        packed += sent_[r] * size;
      }
      host_->all_to_all(buffer_, sent_, in, received_, type, {});
      auto* to = static_cast<std::byte*>(recv);
      packed = in;
      for (std::size_t r = 0; r < size_; to += recv_counts[r++] * size) {
        copy(to + at * size, packed, received_[r] * size, stream);
        packed += received_[r] * size;
      }
    }
  }

  std::uint64_t start_all_reduce(void* data, std::size_t n, DataType type, ReduceOp op, const Stream& stream) override {
    all_reduce(data, n, type, op, stream);
    return 0;
  }
  std::uint64_t start_all_gather(const void* send, std::size_t n, void* recv, DataType type,
                                 const Stream& stream) override {
    all_gather(send, n, recv, type, stream);
    return 0;
  }
  std::uint64_t start_reduce_scatter(void* send, void* recv, std::size_t n, DataType type, ReduceOp op,
                                     const Stream& stream) override {
    reduce_scatter(send, recv, n, type, op, stream);
    return 0;
  }
  std::uint64_t start_all_to_all(const void* send, std::size_t n, void* recv, DataType type,
                                 const Stream& stream) override {
    std::fill(equal_.begin(), equal_.end(), n);
    all_to_all(send, equal_, recv, equal_, type, stream);
    return 0;
  }
  std::uint64_t start_all_to_all(const void* send, std::span<const std::size_t> send_counts, void* recv,
                                 std::span<const std::size_t> recv_counts, DataType type,
                                 const StreamPoint& after) override {
    all_to_all(send, send_counts, recv, recv_counts, type, after.stream());
    return 0;
  }
  bool test(std::uint64_t) override { return true; }
  void wait(std::uint64_t) override {}

  std::string path() const override { return host_->path() + " through host buffers"; }
  std::size_t staging_bytes() const override { return buffer_bytes + host_->staging_bytes(); }

 private:
  template <class F>
  static void in_chunks(std::size_t n, DataType type, std::size_t parts, F&& move) {
    const std::size_t most = std::max<std::size_t>(1, buffer_bytes / bytes_of(type) / parts);
    for (std::size_t at = 0; at < n; at += most) move(at, std::min(most, n - at));
  }

  static void copy(void* to, const void* from, std::size_t bytes, const Stream& stream) {
    NANOTRON_CHECK_GPU(gpuMemcpyAsync(to, from, bytes, gpuMemcpyDefault, stream.get()));
    NANOTRON_CHECK_GPU(gpuStreamSynchronize(stream.get()));
  }

  // One row of `bytes` per rank.
  void copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride, std::size_t bytes,
                 const Stream& stream) const {
    NANOTRON_CHECK_GPU(
        gpuMemcpy2DAsync(to, to_stride, from, from_stride, bytes, size_, gpuMemcpyDefault, stream.get()));
    NANOTRON_CHECK_GPU(gpuStreamSynchronize(stream.get()));
  }

  std::unique_ptr<Channel> host_;
  std::size_t rank_;
  std::size_t size_;
  std::vector<std::size_t> sent_, received_;  // of a round of all_to_all
  std::vector<std::size_t> equal_;            // of start_all_to_all
  std::byte* buffer_ = nullptr;
};

}  // namespace

std::unique_ptr<Channel> make_staged_channel(const Communicator& communicator, std::unique_ptr<Channel> host) {
  return std::make_unique<StagedChannel>(communicator, std::move(host));
}

}  // namespace nanotron::comm
