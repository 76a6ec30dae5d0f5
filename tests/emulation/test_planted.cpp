// ranks: none
// Faults between ranks, planted: each test ends by a fault, whose words CMakeLists.txt expects.

#include <array>

#include "emulation/gpu_test.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/transport/nccl_api.hpp"
#include "nanotron/kernels/gemm/gemm.hpp"
#include "support/world.hpp"

namespace nanotron::comm {
namespace {

using test::DeviceArray;
using test::launch;

class Planted : public testing::Test {
 protected:
  Stream stream() const { return Stream(stream_.get()); }
  bool is_first() const { return group_.rank() == 0; }
  // NCCL connects at the first use.
  void use_once(Group& group) {
    const DeviceArray<double> a(4);
    all_reduce(group, a.data(), 4, ReduceOp::sum, stream());
    gpuDeviceSynchronize();
  }
  double* register_window(std::size_t bytes) {
    void* memory = nullptr;
    ncclMemAlloc(&memory, bytes);
    group_.register_memory({{static_cast<std::byte*>(memory), bytes}, deck::MemoryRegistration::symmetric});
    return static_cast<double*>(memory);
  }

  test::OwnStream stream_;
  Group group_{Communicator::duplicate(test::world()), Transport::nccl};
};

TEST_F(Planted, SkippedCollective) {
  use_once(group_);
  const DeviceArray<double> a(4);
  if (is_first()) all_reduce(group_, a.data(), 4, ReduceOp::sum, stream());
  gpuDeviceSynchronize();
  MPI_Barrier(test::world());
}

TEST_F(Planted, AnotherCount) {
  const DeviceArray<double> a(4);
  all_reduce(group_, a.data(), is_first() ? 4 : 3, ReduceOp::sum, stream());
  gpuDeviceSynchronize();
}

// Of two messages of one lane, the second one's receive is posted first.
TEST_F(Planted, SwappedReceives) {
  const DeviceArray<double> small(4), large(8);
  std::vector<Request> requests;
  if (is_first()) {
    requests.push_back(start_send(group_, small.data(), 4, Neighbour::next, stream()));
    requests.push_back(start_send(group_, large.data(), 8, Neighbour::next, stream()));
  } else {
    group_.open_messages();
    requests.push_back(start_receive(group_, large.data(), 8, Neighbour::previous, stream()));
    requests.push_back(start_receive(group_, small.data(), 4, Neighbour::previous, stream()));
  }
  for (Request& request : requests) request.wait();
  gpuDeviceSynchronize();
}

// Two groups whose blocking collectives the ranks issue in different orders on one stream.
TEST_F(Planted, CollectivesInDifferentOrders) {
  Group other(Communicator::duplicate(test::world()), Transport::nccl);
  for (Group* const group : {&group_, &other}) use_once(*group);
  const DeviceArray<double> a(4), b(4);
  all_reduce(is_first() ? group_ : other, a.data(), 4, ReduceOp::sum, stream());
  all_reduce(is_first() ? other : group_, b.data(), 4, ReduceOp::sum, stream());
  gpuDeviceSynchronize();
}

// The same with a stream for each: it might go well on a GPU, and for years.
TEST_F(Planted, LaunchesInDifferentOrders) {
  Group other(Communicator::duplicate(test::world()), Transport::nccl);
  for (Group* const group : {&group_, &other}) use_once(*group);
  const test::OwnStream second;
  const DeviceArray<double> a(4), b(4);
  const auto sum = [&](Group& group, const DeviceArray<double>& data, gpuStream_t on) {
    all_reduce(group, data.data(), 4, ReduceOp::sum, Stream(on));
  };
  if (is_first()) sum(group_, a, stream_.get());
  sum(other, b, second.get());
  if (!is_first()) sum(group_, a, stream_.get());
  gpuDeviceSynchronize();
  MPI_Barrier(test::world());
}

// The first ones: the hosts wait for each other, whatever the streams.
TEST_F(Planted, FirstCollectivesInDifferentOrders) {
  Group other(Communicator::duplicate(test::world()), Transport::nccl);
  const DeviceArray<double> a(4);
  for (Group* const group : {is_first() ? &group_ : &other, is_first() ? &other : &group_}) {
    all_reduce(*group, a.data(), 4, ReduceOp::sum, stream());
  }
}

// Each rank posts its receive before its send, as the ends of a pipeline do.
TEST_F(Planted, FirstMessagesInACircle) {
  ncclComm_t ways[2];  // from rank 0 to 1, and back
  for (ncclComm_t& way : ways) {
    ncclUniqueId id{};
    if (is_first()) ncclGetUniqueId(&id);
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, test::world());
    ncclCommInitRank(&way, 2, id, group_.rank());
  }
  const int peer = 1 - group_.rank();
  const DeviceArray<double> in(4), out(4);
  ncclRecv(in.data(), 32, ncclInt8, peer, ways[is_first() ? 1 : 0], stream_.get());
  ncclSend(out.data(), 32, ncclInt8, peer, ways[is_first() ? 0 : 1], stream_.get());
}

// A stream waits for what the peer sends after it has received what a stream beside it computes.
TEST_F(Planted, OneHardwareQueue) {
  setenv(emulation::variable_of_queues, "1", 1);
  Group group(Communicator::duplicate(test::world()), Transport::nccl);
  const DeviceArray<double> out(4), in(4);
  group.open_messages();
  const test::OwnStream waiting, beside;
  start_receive(group, in.data(), 4, Neighbour::previous, Stream(waiting.get())).wait();
  launch(beside.get(), [p = out.data()] { p[0] = 1.0; });
  start_send(group, out.data(), 4, Neighbour::next, Stream(beside.get())).wait();
  gpuDeviceSynchronize();
}

TEST_F(Planted, HostMemory) {
  double here = 1.0;
  all_reduce(group_, &here, 1, ReduceOp::sum, stream());
}

TEST_F(Planted, FreedWhileRegistered) {
  void* memory = nullptr;
  ncclMemAlloc(&memory, 64);
  group_.register_memory({{static_cast<std::byte*>(memory), 64}, deck::MemoryRegistration::local});
  ncclMemFree(memory);
}

TEST_F(Planted, WindowsOfOtherSizes) { register_window(is_first() ? 8192 : 4096); }

TEST_F(Planted, OffsetsThatDiffer) {
  double* const memory = register_window(8192);
  all_reduce(group_, memory + (is_first() ? 4 : 8), 4, ReduceOp::sum, stream());
  gpuDeviceSynchronize();
}

TEST_F(Planted, WindowOfOtherMemory) {
  void* memory = nullptr;
  gpuMalloc(&memory, 4096);
  group_.register_memory({{static_cast<std::byte*>(memory), 4096}, deck::MemoryRegistration::symmetric});
}

// A receive waits for what a kernel computes whose module is loaded at its first launch.
TEST_F(Planted, LazyLoading) {
  unsetenv("CUDA_MODULE_LOADING");
  const DeviceArray<double> out(4), in(4);
  Request receive = start_receive(group_, in.data(), 4, Neighbour::previous, stream());
  emulation::Scheduler::instance().launch_kernel(*reinterpret_cast<emulation::Stream*>(stream_.get()),
                                                 "first of its kind", [p = out.data()] { p[0] = 1.0; });
  Request send = start_send(group_, out.data(), 4, Neighbour::next, stream());
  receive.wait();
  send.wait();
  gpuDeviceSynchronize();
}

// The same with a GEMM, whose kernel cuBLASLt loads at its first use, CUDA_MODULE_LOADING = EAGER or not.
TEST_F(Planted, FirstGemm) {
  Timers timers;
  Device device(timers);
  const DeviceArray<double> a(4), b(4), out(4), in(4);
  const auto matrix = [](const DeviceArray<double>& of) { return MatrixRef<double>(of.data(), 2, 2); };
  Request receive = start_receive(group_, in.data(), 4, Neighbour::previous, device.stream());
  kernels::gemm<double, double>(device, kernels::Op::none, kernels::Op::none, 1.0, matrix(a), matrix(b), 0.0,
                                matrix(out));
  Request send = start_send(group_, out.data(), 4, Neighbour::next, device.stream());
  receive.wait();
  send.wait();
  device.fence();
}

}  // namespace
}  // namespace nanotron::comm
