// GPU memory through pinned host buffers. For ranks that share a GPU, which NCCL refuses: correct, not fast.

#include <utility>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/base/gpu_api.hpp"
#include "nanotron/comm/transport/messages.hpp"

namespace nanotron::comm {
namespace {

class StagedMessages final : public Messages {
 public:
  explicit StagedMessages(std::unique_ptr<Messages> host) : host_(std::move(host)) {}
  ~StagedMessages() override {
    for (const Buffer& buffer : buffers_) static_cast<void>(gpuFreeHost(buffer.memory));
  }

  std::uint64_t start_send(const void* data, std::size_t bytes, Neighbour to, int lane, const Stream& stream) override {
    const std::size_t ticket = take(bytes);
    Buffer& buffer = buffers_[ticket];
    buffer.device = nullptr;
    copy(buffer.memory, data, bytes, stream);
    buffer.running = host_->start_send(buffer.memory, bytes, to, lane, {});
    return ticket;
  }

  std::uint64_t start_receive(void* data, std::size_t bytes, Neighbour from, int lane, const Stream& stream) override {
    const std::size_t ticket = take(bytes);
    Buffer& buffer = buffers_[ticket];
    buffer.device = data;
    buffer.used = bytes;
    buffer.stream = stream;
    buffer.running = host_->start_receive(buffer.memory, bytes, from, lane, {});
    return ticket;
  }

  bool test(std::uint64_t ticket) override {
    if (!host_->test(buffers_[ticket].running)) return false;
    finish(ticket);
    return true;
  }

  void wait(std::uint64_t ticket) override {
    host_->wait(buffers_[ticket].running);
    finish(ticket);
  }

 private:
  // Pinned memory of one message; later messages that fit reuse it.
  struct Buffer {
    void* memory = nullptr;
    std::size_t size = 0;
    std::size_t used = 0;
    void* device = nullptr;  // destination of a received message; null for a send
    Stream stream;
    std::uint64_t running = 0;  // ticket of the host message
  };

  static void copy(void* to, const void* from, std::size_t bytes, const Stream& stream) {
    NANOTRON_CHECK_GPU(gpuMemcpyAsync(to, from, bytes, gpuMemcpyDefault, stream.get()));
    NANOTRON_CHECK_GPU(gpuStreamSynchronize(stream.get()));
  }

  void finish(std::uint64_t ticket) {
    const Buffer& buffer = buffers_[ticket];
    if (buffer.device != nullptr) copy(buffer.device, buffer.memory, buffer.used, buffer.stream);
    free_.push_back(ticket);
  }

  std::size_t take(std::size_t bytes) {
    if (free_.empty()) {
      buffers_.emplace_back();
      free_.reserve(buffers_.size());
      free_.push_back(buffers_.size() - 1);
    }
    const std::size_t ticket = free_.back();
    free_.pop_back();
    Buffer& buffer = buffers_[ticket];
    if (buffer.size < bytes) {
      NANOTRON_CHECK_GPU(gpuFreeHost(std::exchange(buffer.memory, nullptr)));
      NANOTRON_CHECK_GPU(gpuMallocHost(&buffer.memory, bytes));
      buffer.size = bytes;
    }
    return ticket;
  }

  std::unique_ptr<Messages> host_;
  std::vector<Buffer> buffers_;  // by ticket
  std::vector<std::size_t> free_;
};

}  // namespace

std::unique_ptr<Messages> make_staged_messages(std::unique_ptr<Messages> host) {
  return std::make_unique<StagedMessages>(std::move(host));
}

}  // namespace nanotron::comm
