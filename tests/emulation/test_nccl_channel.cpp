// ranks: 1 2 3 4
// Collectives over NCCL in many orders, between kernels that write their input and read their result.

#include <cmath>
#include <cstdlib>

#include "emulation/gpu_test.hpp"
#include "nanotron/base/process.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/transport/nccl_api.hpp"
#include "support/world.hpp"

namespace nanotron::comm {
namespace {

using test::DeviceArray;
using test::launch;

constexpr std::uint64_t orders = 20;
constexpr std::size_t n = 1000;

class NcclCollectives : public testing::Test {
 protected:
  void TearDown() override { MPI_Barrier(test::world()); }

  // Rank r fills its memory with what f(r, i) says, as a kernel does.
  template <class T, class F>
  void fill(const DeviceArray<T>& array, const F& f) const {
    launch(stream_.get(), [p = array.data(), size = array.size(), rank = group_.rank(), f] {
      for (std::size_t i = 0; i < size; ++i) p[i] = static_cast<T>(f(rank, i));
    });
  }
  Stream stream() const { return Stream(stream_.get()); }
  std::size_t size() const { return static_cast<std::size_t>(group_.size()); }

  test::OwnStream stream_;
  Group group_{Communicator::duplicate(test::world()), Transport::nccl};
};

double value(int rank, std::size_t i) { return 1.0 + rank + 0.5 * static_cast<double>(i); }

TEST_F(NcclCollectives, EveryOneInEveryOrder) {
  const double ranks = group_.size(), of_ranks = ranks * (ranks + 1) / 2;
  for (std::uint64_t order = 0; order < orders; ++order) {
    emulation::Scheduler::instance().reseed(order);
    const DeviceArray<double> a(n), b(n), all(n * size()), mine(n);
    fill(a, value);
    Request sum = start_all_reduce(group_, a.data(), n, ReduceOp::sum, stream());
    fill(b, value);
    Request gathered = start_all_gather(group_, b.data(), n, all.data(), stream());
    gathered.wait();
    const auto everything = all.values(stream_.get());
    sum.wait();
    const auto sums = a.values(stream_.get());
    Request scattered = start_reduce_scatter(group_, all.data(), mine.data(), n, ReduceOp::sum, stream());
    scattered.wait();
    const auto shard = mine.values(stream_.get());
    const DeviceArray<double> parts(n * size()), exchanged(n * size());
    fill(parts, value);
    Request parts_exchanged = start_all_to_all(group_, parts.data(), n, exchanged.data(), stream());
    parts_exchanged.wait();
    const auto of_all = exchanged.values(stream_.get());
    const auto me = static_cast<std::size_t>(group_.rank());
    for (std::size_t i = 0; i < n; ++i) {
      const double half = 0.5 * static_cast<double>(i);
      ASSERT_EQ(sums[i], of_ranks + ranks * half) << order;
      ASSERT_EQ(shard[i], ranks * value(group_.rank(), i)) << order;
      for (std::size_t r = 0; r < size(); ++r) ASSERT_EQ(everything[r * n + i], value(static_cast<int>(r), i)) << order;
      for (std::size_t r = 0; r < size(); ++r)
        ASSERT_EQ(of_all[r * n + i], value(static_cast<int>(r), me * n + i)) << order;
    }
    broadcast(group_, b.data(), n, group_.size() - 1, stream());
    all_reduce(group_, b.data(), n, ReduceOp::max, stream());
    EXPECT_EQ(b.values(stream_.get())[3], value(group_.size() - 1, 3)) << order;
  }
}

TEST_F(NcclCollectives, NarrowTypes) {
  for (std::uint64_t order = 0; order < orders; ++order) {
    emulation::Scheduler::instance().reseed(order);
    const DeviceArray<bf16> a(n);
    fill(a, [](int rank, std::size_t i) { return static_cast<float>(rank + static_cast<int>(i % 7)); });
    all_reduce(group_, a.data(), n, ReduceOp::sum, stream());
    const float ranks = static_cast<float>(group_.size());
    EXPECT_EQ(static_cast<float>(a.values(stream_.get())[5]), ranks * (ranks - 1) / 2 + 5 * ranks) << order;
  }
}

// In windows of both, which end before their memory.
TEST_F(NcclCollectives, OfSymmetricMemory) {
  if (!emulation::is_nccl) GTEST_SKIP() << "RCCL has no windows";
  Group copies(group_.communicator().split(0, group_.rank()), Transport::nccl, Sums::any_order,
               deck::CollectiveEngine::copies);
  void* memory = nullptr;
  const std::size_t bytes = 2 * n * size() * sizeof(double);
  ASSERT_EQ(ncclMemAlloc(&memory, bytes), ncclSuccess);
  const Registration registration{{static_cast<std::byte*>(memory), bytes}, deck::MemoryRegistration::symmetric};
  for (Group* const group : {&group_, &copies}) group->register_memory(registration);
  double *const all = static_cast<double*>(memory), *const mine = all + n * static_cast<std::size_t>(group_.rank());
  launch(stream_.get(), [mine, rank = group_.rank()] {
    for (std::size_t i = 0; i < n; ++i) mine[i] = value(rank, i);
  });
  all_gather(copies, mine, n, all, stream());  // in place: only where the parts go is symmetric
  all_reduce(group_, all, n * size(), ReduceOp::sum, stream());
  std::vector<double> host(n * size());
  NANOTRON_CHECK_GPU(
      gpuMemcpyAsync(host.data(), memory, n * size() * sizeof(double), gpuMemcpyDeviceToHost, stream_.get()));
  NANOTRON_CHECK_GPU(gpuStreamSynchronize(stream_.get()));
  for (std::size_t r = 0; r < size(); ++r) {
    EXPECT_EQ(host[r * n + 3], static_cast<double>(size()) * value(static_cast<int>(r), 3));
  }
  gpuDeviceSynchronize();
  for (Group* const group : {&group_, &copies}) group->register_memory({});
  EXPECT_EQ(ncclMemFree(memory), ncclSuccess);
}

// What an older library lacks is a mistake of the deck.
TEST_F(NcclCollectives, NeedANcclThatHasThem) {
  if (size() == 1) GTEST_SKIP() << "one rank has no communicator";
  const auto message = [](const auto& work) -> std::string {
    try {
      work();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::deck_error);
      return error.what();
    }
    return "";
  };
  std::byte memory[1];
  setenv("NANOTRON_EMULATED_NCCL", "22606", 1);
  EXPECT_NE(message([&] {
              group_.register_memory({memory, deck::MemoryRegistration::symmetric});
            }).find("NCCL 2.27.0 or newer"),
            std::string::npos);
  EXPECT_NE(message([&] {
              Group(group_.communicator().split(0, 0), Transport::nccl, Sums::any_order,
                    deck::CollectiveEngine::copies);
            }).find("2.26.6, in a build with"),
            std::string::npos);
  unsetenv("NANOTRON_EMULATED_NCCL");
}

// Groups that overlap, whose operations the ranks issue in the same order.
TEST_F(NcclCollectives, TwoGroups) {
  Group pairs(group_.communicator().split(group_.rank() / 2, group_.rank()), Transport::nccl);
  for (std::uint64_t order = 0; order < orders; ++order) {
    emulation::Scheduler::instance().reseed(order);
    const DeviceArray<double> a(n), b(n);
    fill(a, [](int, std::size_t) { return 1; });
    fill(b, [](int, std::size_t) { return 1; });
    Request first = start_all_reduce(pairs, a.data(), n, ReduceOp::sum, stream());
    Request second = start_all_reduce(group_, b.data(), n, ReduceOp::sum, stream());
    second.wait();
    while (!first.test()) {
    }
    EXPECT_EQ(gpuGetLastError(), gpuSuccess) << "what is not done yet is no error of a launch";
    EXPECT_EQ(a.values(stream_.get())[0], pairs.size()) << order;
    EXPECT_EQ(b.values(stream_.get())[0], group_.size()) << order;
  }
}

TEST_F(NcclCollectives, AllToAllOfUnequalParts) {
  const auto self = static_cast<std::size_t>(group_.rank());
  std::vector<std::size_t> sent(size()), received(size());
  for (std::size_t r = 0; r < size(); ++r) {
    sent[r] = 10 * self + r;
    received[r] = 10 * r + self;
  }
  std::size_t out = 0, in = 0;
  for (std::size_t r = 0; r < size(); ++r) out += sent[r], in += received[r];
  for (std::uint64_t order = 0; order < orders; ++order) {
    emulation::Scheduler::instance().reseed(order);
    const DeviceArray<float> from(out), to(in);
    fill(from, [](int rank, std::size_t) { return rank; });
    all_to_all(group_, from.data(), sent, to.data(), received, stream());
    const auto values = to.values(stream_.get());
    std::size_t at = 0;
    for (std::size_t r = 0; r < size(); ++r) {
      for (std::size_t i = 0; i < received[r]; ++i) ASSERT_EQ(values[at++], static_cast<float>(r)) << order;
    }
  }
}

TEST(GpuOfRank, ARankWithoutAGpuIsTheErrorOfAll) {
  const Communicator world = Communicator::duplicate(test::world());
  EXPECT_EQ(gpu_of_rank(world), 0);
  const int last = world.size() - 1;
  if (world.rank() == last) setenv("NANOTRON_EMULATED_GPUS", "0", 1);
  try {
    gpu_of_rank(world);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::system_error);
    EXPECT_NE(std::string(error.what()).find(fmt::format("rank {} on host", last)), std::string::npos) << error.what();
  }
  unsetenv("NANOTRON_EMULATED_GPUS");
  if (emulation::is_nccl) {
    EXPECT_STREQ(std::getenv("CUDA_MODULE_LOADING"), "EAGER");
  } else {
    EXPECT_STREQ(std::getenv("GPU_MAX_HW_QUEUES"), "24");
  }
}

TEST(Transports, AnOldDriverIsRefusedForMessages) {
  if (!emulation::is_nccl) GTEST_SKIP() << "RCCL has no order of launches";
  Group group(Communicator::duplicate(test::world()), Transport::nccl);
  if (group.size() == 1) return;
  setenv("NANOTRON_EMULATED_DRIVER", "12020", 1);
  try {
    group.open_messages();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::system_error);
    EXPECT_NE(std::string(error.what()).find("CUDA 12.2"), std::string::npos) << error.what();
  }
  unsetenv("NANOTRON_EMULATED_DRIVER");
  EXPECT_NO_THROW(group.open_messages());
}

std::string error_of_sharing(deck::Backend backend, const Communicator& world) {
  try {
    choose_transport(backend, world);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::deck_error);
    return error.what();
  }
  return "";
}

TEST(Transports, ASharedGpuIsAskedForByName) {
  const Communicator world = Communicator::duplicate(test::world());
  EXPECT_EQ(choose_transport(deck::Backend::automatic, world), Transport::nccl);
  setenv("NANOTRON_EMULATED_SHARED_GPU", "1", 1);
  const bool is_shared = world.size() > 1;
  EXPECT_EQ(ranks_share_gpus(world), is_shared);
  for (const deck::Backend backend : {deck::Backend::automatic, deck::Backend::nccl}) {
    const std::string words = error_of_sharing(backend, world);
    if (!is_shared) continue;
    EXPECT_NE(words.find(fmt::format("{} ranks and 1 GPU that they see", world.size())), std::string::npos) << words;
    EXPECT_NE(words.find(fmt::format("host {}", host_name())), std::string::npos) << words;
  }
  EXPECT_EQ(choose_transport(deck::Backend::mpi, world), Transport::staged_mpi);
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  EXPECT_EQ(error_of_sharing(deck::Backend::automatic, world).empty(), emulation::is_nccl || !is_shared);
  unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
  unsetenv("NANOTRON_EMULATED_SHARED_GPU");
}

}  // namespace
}  // namespace nanotron::comm
