// The channel and the messages of groups in a plan: nothing is sent, everything has arrived.

#include "nanotron/comm/channel.hpp"

namespace nanotron::comm {
namespace {

class PlannedChannel final : public Channel {
 public:
  void all_reduce(void*, std::size_t, DataType, ReduceOp, const Stream&) override {}
  void all_gather(const void*, std::size_t, void*, DataType, const Stream&) override {}
  void reduce_scatter(void*, void*, std::size_t, DataType, ReduceOp, const Stream&) override {}
  void broadcast(void*, std::size_t, DataType, int, const Stream&) override {}
  void all_to_all(const void*, std::span<const std::size_t>, void*, std::span<const std::size_t>, DataType,
                  const Stream&) override {}
  std::uint64_t start_all_reduce(void*, std::size_t, DataType, ReduceOp, const Stream&) override { return 0; }
  std::uint64_t start_all_gather(const void*, std::size_t, void*, DataType, const Stream&) override { return 0; }
  std::uint64_t start_reduce_scatter(void*, void*, std::size_t, DataType, ReduceOp, const Stream&) override {
    return 0;
  }
  std::string path() const override { return "planned"; }
  std::size_t staging_bytes() const override { return 0; }
  bool test(std::uint64_t) override { return true; }
  void wait(std::uint64_t) override {}
};

class PlannedMessages final : public Messages {
 public:
  std::uint64_t start_send(const void*, std::size_t, Neighbour, int, const Stream&) override { return 0; }
  std::uint64_t start_receive(void*, std::size_t, Neighbour, int, const Stream&) override { return 0; }
  bool test(std::uint64_t) override { return true; }
  void wait(std::uint64_t) override {}
};

}  // namespace

std::unique_ptr<Channel> make_planned_channel() { return std::make_unique<PlannedChannel>(); }
std::unique_ptr<Messages> make_planned_messages() { return std::make_unique<PlannedMessages>(); }

}  // namespace nanotron::comm
