// ranks: 1
// The rules of streams, events and memory that the emulated GPU has to keep, and the faults that it has to find.
#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

#include "emulation/device_memory.hpp"
#include "emulation/gpu_test.hpp"
#include "nanotron/base/gpu_calls.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::emulation {
namespace {

using test::DeviceArray;
using test::launch;
using test::OwnStream;

// The letters of two streams in the order in which they ran.
std::string order_of_two_streams(std::uint64_t seed, bool with_event) {
  Scheduler::instance().reseed(seed);
  OwnStream a, b;
  std::string ran;
  gpuEvent_t event = nullptr;
  gpuEventCreateWithFlags(&event, gpuEventDisableTiming);
  for (const char letter : {'a', 'b', 'c'}) launch(a.get(), [&ran, letter] { ran += letter; });
  if (with_event) {
    gpuEventRecord(event, a.get());
    gpuStreamWaitEvent(b.get(), event, 0);
  }
  for (const char letter : {'x', 'y'}) launch(b.get(), [&ran, letter] { ran += letter; });
  gpuDeviceSynchronize();
  gpuEventDestroy(event);
  return ran;
}

TEST(Streams, AllLegalOrdersAndNoOtherHappen) {
  std::set<std::string> seen;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const std::string order = order_of_two_streams(seed, false);
    std::string first, second;
    std::ranges::copy_if(order, std::back_inserter(first), [](char c) { return c < 'x'; });
    std::ranges::copy_if(order, std::back_inserter(second), [](char c) { return c >= 'x'; });
    EXPECT_EQ(first + second, "abcxy");
    seen.insert(order);
  }
  EXPECT_EQ(seen.size(), 10u);  // 5! / (3! 2!)
  for (std::uint64_t seed = 0; seed < 50; ++seed) EXPECT_EQ(order_of_two_streams(seed, true), "abcxy");
}

TEST(Streams, AnEventIsWaitedForAsItWasRecordedWhenTheWaitWasQueued) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Scheduler::instance().reseed(seed);
    OwnStream a, b, c;
    gpuEvent_t event = nullptr;
    gpuEventCreateWithFlags(&event, gpuEventDisableTiming);
    int at = 0;
    bool early = false;
    launch(a.get(), [&] { ++at; });
    gpuEventRecord(event, a.get());
    gpuStreamWaitEvent(b.get(), event, 0);
    launch(b.get(), [&] { early = at == 0; });
    gpuEventRecord(event, c.get());  // another point, of an empty stream
    gpuStreamSynchronize(b.get());
    EXPECT_FALSE(early) << seed;
    gpuDeviceSynchronize();
    gpuEventDestroy(event);
  }
}

TEST(Streams, TheDefaultStreamIsInOrderWithBlockingOnes) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Scheduler::instance().reseed(seed);
    OwnStream a;
    std::string ran;
    launch(a.get(), [&] { ran += 'a'; });
    Scheduler::instance().launch(Scheduler::instance().default_stream(), kernel("d", [&] { ran += 'd'; }));
    launch(a.get(), [&] { ran += 'b'; });
    gpuDeviceSynchronize();
    EXPECT_EQ(ran, "adb") << seed;
  }
}

TEST(Streams, NothingHasToRunBeforeItIsWaitedFor) {
  int late = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Scheduler::instance().reseed(seed);
    OwnStream a;
    bool ran = false;
    launch(a.get(), [&] { ran = true; });
    late += ran ? 0 : 1;
    gpuStreamSynchronize(a.get());
    EXPECT_TRUE(ran);
  }
  EXPECT_GT(late, 10);
}

TEST(Memory, CopiesGoThereAndBack) {
  OwnStream stream;
  std::vector<double> host{1, 2, 3};
  const DeviceArray<double> device(host);
  launch(stream.get(), [p = device.data()] { p[1] = 7; });
  EXPECT_EQ(device.values(stream.get()), (std::vector<double>{1, 7, 3}));
}

// Pageable memory may be used again at once.
TEST(Memory, PageableSourcesAreReadAtTheCall) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Scheduler::instance().reseed(seed);
    OwnStream stream;
    const DeviceArray<int> device(1);
    int value = 5;
    gpuMemcpyAsync(device.data(), &value, sizeof value, gpuMemcpyHostToDevice, stream.get());
    value = 6;
    EXPECT_EQ(device.values(stream.get())[0], 5);
  }
}

// What the program must not do, each found and named ------------------------------------------------

const auto found = testing::ExitedWithCode(99);

TEST(FoundDeathTest, HostReadOfDeviceMemory) {
  EXPECT_EXIT(
      {
        const DeviceArray<double> device(std::vector<double>(100));
        volatile double read = device.data()[3];
        static_cast<void>(read);
      },
      found, "the host reaches for device memory: byte 24 of an allocation of 800");
}

TEST(FoundDeathTest, ReusedPinnedBuffer) {
  EXPECT_EXIT(
      {
        for (std::uint64_t seed = 0; seed < 20; ++seed) {
          Scheduler::instance().reseed(seed);
          OwnStream stream;
          const DeviceArray<int> device(1);
          void* memory = nullptr;
          gpuMallocHost(&memory, sizeof(int));
          auto* pinned = static_cast<int*>(memory);
          *pinned = 1;
          gpuMemcpyAsync(device.data(), pinned, sizeof(int), gpuMemcpyHostToDevice, stream.get());
          *pinned = 2;
          gpuStreamSynchronize(stream.get());
          gpuFreeHost(memory);
        }
      },
      found, "a pinned buffer was changed before the copy from it ran");
}

using Range = Kokkos::RangePolicy<Kokkos::DefaultExecutionSpace, Kokkos::IndexType<std::int64_t>>;

TEST(FoundDeathTest, HostMemoryInAKernel) {
  EXPECT_EXIT(
      {
        std::vector<double> host(4);
        Kokkos::parallel_for("reads", Range(0, 4), [p = host.data()](std::int64_t i) { p[i] = 1; });
      },
      found, "the kernel 'reads' captures an address of the host, 0x[0-9a-f]*, at byte 0 of 8");
}

TEST(FoundDeathTest, AReferenceInAKernel) {
  EXPECT_EXIT(
      {
        const DeviceArray<double> device(4);
        double here = 0;
        Kokkos::parallel_for("by reference", Range(0, 4), [p = device.data(), &here](std::int64_t i) { p[i] = here; });
      },
      found, "the kernel 'by reference' captures an address of the host, 0x[0-9a-f]*, at byte 8 of 16");
}

// Of a closure with padding, a managed view, an allocation's end and pinned memory nothing is the host's.
TEST(Memory, WhatAKernelMayCapture) {
  const Kokkos::View<double*, Kokkos::DefaultExecutionSpace::memory_space> managed("managed", 512);
  void* pinned = nullptr;
  gpuMallocHost(&pinned, sizeof(double));
  const double* const end = managed.data() + managed.size();
  for (int small = 0; small < 1000; ++small) {
    Kokkos::parallel_for("all of it", Range(0, 1),
                         [small, managed, is_odd = small % 2 == 1, end, pinned](std::int64_t i) {
                           managed(i) = is_odd && end != pinned ? small : 0;
                         });
  }
  Kokkos::fence();
  gpuFreeHost(pinned);
}

// Without the fence before it, a read-back finds poison in at least one order.
TEST(FoundDeathTest, MissingFenceBeforeAReadBack) {
  int poisoned = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Scheduler::instance().reseed(seed);
    OwnStream stream;
    const DeviceArray<double> device(std::vector<double>{4});
    void* memory = nullptr;
    gpuMallocHost(&memory, sizeof(double));
    gpuMemcpyAsync(memory, device.data(), sizeof(double), gpuMemcpyDeviceToHost, stream.get());
    double early = 0, late = 0;
    std::memcpy(&early, memory, sizeof early);
    gpuStreamSynchronize(stream.get());
    std::memcpy(&late, memory, sizeof late);
    poisoned += early != early ? 1 : 0;
    EXPECT_EQ(late, 4);
    gpuFreeHost(memory);
  }
  EXPECT_GT(poisoned, 5);
}

// A stream that does not wait for another one's result reads it too early in at least one order.
TEST(FoundDeathTest, DroppedWait) {
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Scheduler::instance().reseed(seed);
    OwnStream writer, reader;
    const DeviceArray<int> from(1), to(1);
    launch(writer.get(), [p = from.data()] { *p = 1; });
    launch(reader.get(), [p = from.data(), q = to.data()] { *q = *p; });
    wrong += to.values(reader.get())[0] != 1 ? 1 : 0;
    gpuDeviceSynchronize();
  }
  EXPECT_GT(wrong, 2);
}

// Kokkos says nothing of it in release builds.
// An event that is not reached is no error, and hides none.
TEST(Launches, ThatFailAreToldByTheNextLookAtAnEvent) {
  Timers timers;
  const Device device(timers);
  const OwnStream other;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Scheduler::instance().reseed(seed);
    gpuEvent_t event = nullptr;
    gpuEventCreateWithFlags(&event, gpuEventDisableTiming);
    launch(other.get(), [] {});
    gpuEventRecord(event, other.get());
    EXPECT_NO_THROW(is_passed(event));
    Scheduler::instance().refuse_next_launch();
    launch(other.get(), [] {});
    EXPECT_THROW(is_passed(event), Error);
    EXPECT_NO_THROW(device.fence());
    gpuEventDestroy(event);
  }
}

TEST(Launches, ThatFailAreToldByTheNextFence) {
  Timers timers;
  const Device device(timers);
  const OwnStream other;
  EXPECT_NO_THROW(device.fence());
  Scheduler::instance().refuse_next_launch();
  launch(other.get(), [] {});
  EXPECT_THROW(device.fence(), Error);
  EXPECT_NO_THROW(device.fence());
}

}  // namespace
}  // namespace nanotron::emulation
