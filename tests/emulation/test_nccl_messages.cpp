// ranks: 2 3 4
// Messages over NCCL in many orders: lanes that ranks open in different orders, both ways at once.
#include <array>
#include <memory>
#include <vector>

#include "emulation/gpu_test.hpp"
#include "nanotron/comm/collectives.hpp"
#include "support/world.hpp"

namespace nanotron::comm {
namespace {

using test::DeviceArray;
using test::launch;

constexpr std::uint64_t orders = 20;

class NcclRing : public testing::Test {
 protected:
  Stream stream() const { return Stream(stream_.get()); }
  int next() const { return (group_.rank() + 1) % group_.size(); }
  int previous() const { return (group_.rank() + group_.size() - 1) % group_.size(); }

  void fill(const DeviceArray<double>& array, double value) const {
    launch(stream_.get(), [p = array.data(), size = array.size(), value] {
      for (std::size_t i = 0; i < size; ++i) p[i] = value;
    });
  }

  test::OwnStream stream_;
  Group group_{Communicator::duplicate(test::world()), Transport::nccl};
};

// A pipeline: activations to the next rank, gradients to the previous one, each in its lane. One receive of a link is
// posted at a time: NCCL begins operations in the order of their launch, and none behind a second one.
TEST_F(NcclRing, BothWaysInTwoLanes) {
  constexpr int micro_batches = 4;
  constexpr std::size_t n = 300;
  for (std::uint64_t order = 0; order < orders; ++order) {
    emulation::Scheduler::instance().reseed(order);
    std::vector<std::unique_ptr<DeviceArray<double>>> arrays;
    const auto array = [&]() -> DeviceArray<double>& {
      return *arrays.emplace_back(std::make_unique<DeviceArray<double>>(n));
    };
    std::vector<Request> sends;
    for (int m = 0; m < micro_batches; ++m) {
      std::array<DeviceArray<double>*, 2> received{};
      std::array<Request, 2> receives;
      for (std::size_t way = 0; way < 2; ++way) {
        received[way] = &array();
        receives[way] =
            start_receive(group_, received[way]->data(), n, way == 0 ? Neighbour::previous : Neighbour::next, stream(),
                          static_cast<int>(way));
      }
      for (int way = 0; way < 2; ++way) {
        DeviceArray<double>& sent = array();
        fill(sent, group_.rank() + 10 * way + 100 * m);
        sends.push_back(
            start_send(group_, sent.data(), n, way == 0 ? Neighbour::next : Neighbour::previous, stream(), way));
      }
      for (const int way : {1, 0}) {
        const auto at = static_cast<std::size_t>(way);
        receives[at].wait();
        EXPECT_EQ(received[at]->values(stream_.get())[n - 1], (way == 0 ? previous() : next()) + 10 * way + 100 * m)
            << order;
      }
    }
    for (Request& send : sends) send.wait();
    gpuStreamSynchronize(stream_.get());
  }
}

// The first rank begins with lane 1, the others with lane 0, as the ends of a pipeline do.
TEST_F(NcclRing, LanesThatAreOpenedInDifferentOrders) {
  constexpr std::size_t n = 5;
  const bool is_first = group_.rank() == 0;
  const DeviceArray<double> out(n), in(n), other_out(n), other_in(n);
  fill(out, group_.rank());
  fill(other_out, group_.rank() + 50);
  std::vector<Request> requests;
  for (const int lane : is_first ? std::array{1, 0} : std::array{0, 1}) {
    requests.push_back(start_send(group_, (lane == 0 ? out : other_out).data(), n, Neighbour::next, stream(), lane));
    requests.push_back(
        start_receive(group_, (lane == 0 ? in : other_in).data(), n, Neighbour::previous, stream(), lane));
  }
  for (Request& request : requests) request.wait();
  EXPECT_EQ(in.values(stream_.get())[0], previous());
  EXPECT_EQ(other_in.values(stream_.get())[0], previous() + 50);
}

}  // namespace
}  // namespace nanotron::comm
