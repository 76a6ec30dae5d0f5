// The channel and the messages of groups in a plan: nothing is sent, everything has arrived; each operation is
// reported.

#include <numeric>

#include "nanotron/comm/transport/channel.hpp"

namespace nanotron::comm {
namespace {

std::uint64_t start(const PlannedLog& log, PlannedOperation operation) {
  operation.group = log.group;
  return log.log == nullptr ? 0 : log.log->started(operation);
}
void finish(const PlannedLog& log, std::uint64_t ticket) {
  if (log.log != nullptr) log.log->waited(ticket);
}

class PlannedChannel final : public Channel {
 public:
  PlannedChannel(int ranks, const PlannedLog& log) : ranks_(static_cast<std::size_t>(ranks)), log_(log) {}

  void all_reduce(void*, std::size_t n, DataType type, ReduceOp, const Stream&) override {
    wait(begin(Operation::all_reduce, n, type));
  }
  void all_gather(const void*, std::size_t n, void*, DataType type, const Stream&) override {
    wait(begin(Operation::all_gather, n * ranks_, type));
  }
  void reduce_scatter(void*, void*, std::size_t n, DataType type, ReduceOp, const Stream&) override {
    wait(begin(Operation::reduce_scatter, n * ranks_, type));
  }
  void broadcast(void*, std::size_t n, DataType type, int, const Stream&) override {
    wait(begin(Operation::broadcast, n, type));
  }
  void all_to_all(const void*, std::span<const std::size_t> counts, void*, std::span<const std::size_t>, DataType type,
                  const Stream&) override {
    wait(begin(Operation::all_to_all, std::accumulate(counts.begin(), counts.end(), std::size_t{0}), type));
  }
  std::uint64_t start_all_reduce(void*, std::size_t n, DataType type, ReduceOp, const Stream&) override {
    return begin(Operation::all_reduce, n, type);
  }
  std::uint64_t start_all_gather(const void*, std::size_t n, void*, DataType type, const Stream&) override {
    return begin(Operation::all_gather, n * ranks_, type);
  }
  std::uint64_t start_reduce_scatter(void*, void*, std::size_t n, DataType type, ReduceOp, const Stream&) override {
    return begin(Operation::reduce_scatter, n * ranks_, type);
  }
  std::uint64_t start_all_to_all(const void*, std::size_t n, void*, DataType type, const Stream&) override {
    return begin(Operation::all_to_all, n * ranks_, type);
  }
  std::uint64_t start_all_to_all(const void*, std::span<const std::size_t> counts, void*, std::span<const std::size_t>,
                                 DataType type, const StreamPoint&) override {
    return begin(Operation::all_to_all, std::accumulate(counts.begin(), counts.end(), std::size_t{0}), type);
  }
  std::string path() const override { return "planned"; }
  std::size_t staging_bytes() const override { return 0; }
  bool test(std::uint64_t) override { return true; }
  void wait(std::uint64_t ticket) override { finish(log_, ticket); }

 private:
  std::uint64_t begin(Operation operation, std::size_t n, DataType type) const {
    return start(log_, {.operation = operation, .bytes = static_cast<double>(n * bytes_of(type))});
  }

  std::size_t ranks_;
  PlannedLog log_;
};

class PlannedMessages final : public Messages {
 public:
  explicit PlannedMessages(const PlannedLog& log) : log_(log) {}

  std::uint64_t start_send(const void*, std::size_t bytes, Neighbour to, int lane, const Stream&) override {
    return begin(Operation::send, bytes, to, lane);
  }
  std::uint64_t start_receive(void*, std::size_t bytes, Neighbour from, int lane, const Stream&) override {
    return begin(Operation::receive, bytes, from, lane);
  }
  bool test(std::uint64_t) override { return true; }
  void wait(std::uint64_t ticket) override { finish(log_, ticket); }

 private:
  std::uint64_t begin(Operation operation, std::size_t bytes, Neighbour other, int lane) const {
    return start(log_, {.operation = operation,
                        .bytes = static_cast<double>(bytes),
                        .to_next = other == Neighbour::next,
                        .lane = lane});
  }

  PlannedLog log_;
};

}  // namespace

std::unique_ptr<Channel> make_planned_channel(int ranks, const PlannedLog& log) {
  return std::make_unique<PlannedChannel>(ranks, log);
}
std::unique_ptr<Messages> make_planned_messages(const PlannedLog& log) {
  return std::make_unique<PlannedMessages>(log);
}

}  // namespace nanotron::comm
