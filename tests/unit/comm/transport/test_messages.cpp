// ranks: 2 3 4
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "nanotron/comm/collectives.hpp"
#include "support/world.hpp"

namespace nanotron::comm {
namespace {

class Ring : public ::testing::Test {
 protected:
  int next() const { return (group_.rank() + 1) % group_.size(); }
  int previous() const { return (group_.rank() + group_.size() - 1) % group_.size(); }
  Group group_{Communicator::duplicate(test::world()), Transport::mpi};
};

// Message m of rank r; long ones need their receiver.
std::vector<double> message(int rank, int way, int m) {
  std::vector<double> data(m % 2 ? 5 : 300007);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = rank + 10.0 * way + 100.0 * m + 1e-6 * static_cast<double>(i);
  return data;
}

TEST_F(Ring, MessagesOfBothWaysArriveInOrderWhateverIsWaitedForFirst) {
  constexpr int count = 5;
  std::vector<std::vector<double>> sent[2], received[2];
  std::vector<Request> sends, receives[2];
  for (int way = 0; way < 2; ++way) {
    for (int m = 0; m < count; ++m) {
      sent[way].push_back(message(group_.rank(), way, m));
      received[way].emplace_back(sent[way].back().size());
    }
  }
  for (int m = 0; m < count; ++m) {
    for (int way = 0; way < 2; ++way) {
      const std::vector<double>& data = sent[way][static_cast<std::size_t>(m)];
      sends.push_back(start_send(group_, data.data(), data.size(), way == 0 ? Neighbour::next : Neighbour::previous));
    }
  }
  for (int way = 1; way >= 0; --way) {  // the senders began with the other way
    for (std::vector<double>& data : received[way]) {
      receives[way].push_back(
          start_receive(group_, data.data(), data.size(), way == 0 ? Neighbour::previous : Neighbour::next));
    }
  }
  for (int m = count - 1; m >= 0; --m) receives[0][static_cast<std::size_t>(m)].wait();
  for (Request& request : receives[1]) {
    while (!request.test()) std::this_thread::yield();
  }
  for (Request& request : sends) request.wait();
  for (int m = 0; m < count; ++m) {
    EXPECT_EQ(received[0][static_cast<std::size_t>(m)], message(previous(), 0, m)) << m;
    EXPECT_EQ(received[1][static_cast<std::size_t>(m)], message(next(), 1, m)) << m;
  }
}

TEST_F(Ring, WhatIsSentIsCounted) {
  std::vector<float> out(1000, 1.0f), in(1000);
  Request send = start_send(group_, out.data(), out.size(), Neighbour::next);
  start_receive(group_, in.data(), in.size(), Neighbour::previous).wait();
  send.wait();
  EXPECT_EQ(in, out);
  EXPECT_EQ(group_.traffic().calls, 1u);
  EXPECT_EQ(group_.traffic().bytes, 4000u);
  EXPECT_TRUE(start_send(group_, out.data(), 0, Neighbour::next).test());
}

TEST_F(Ring, CollectivesRunBetweenMessages) {
  std::vector<double> out = message(group_.rank(), 0, 0), in(out.size());
  Request receive = start_receive(group_, in.data(), in.size(), Neighbour::previous);
  Request send = start_send(group_, out.data(), out.size(), Neighbour::next);
  double one = 1.0;
  all_reduce(group_, &one, 1, ReduceOp::sum);
  EXPECT_EQ(one, group_.size());
  receive.wait();
  EXPECT_EQ(in, message(previous(), 0, 0));
  send.wait();
}

}  // namespace
}  // namespace nanotron::comm
