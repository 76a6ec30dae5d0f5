#include "nanotron/tensor/arena.hpp"

#include <gtest/gtest.h>

#include "nanotron/base/error.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron {
namespace {

void take_some(Arena& arena, std::vector<Vector<double>>& views) {
  views.push_back(arena.take<double>(MemoryKind::parameters, 33));
  views.push_back(arena.take<double>(MemoryKind::gradients, 1));
  views.push_back(arena.take<double>(MemoryKind::parameters, 0));
  views.push_back(arena.take<double>(MemoryKind::workspace, 1000));
}

TEST(Arena, GivesWhatWasPlannedZeroedAlignedAndApart) {
  Arena planning = Arena::planning();
  std::vector<Vector<double>> views;
  take_some(planning, views);
  for (const auto& v : views) EXPECT_EQ(v.data(), nullptr);
  EXPECT_EQ(planning.plan().bytes[0], 512u);  // 33 * 8 rounded up to 256

  Arena arena(planning.plan());
  views.clear();
  take_some(arena, views);
  const double* last = nullptr;
  for (const auto& v : views) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(v.data()) % 256, 0u);
    EXPECT_GE(v.data(), last);
    last = v.data() + v.size();
    for (std::size_t i = 0; i < v.size(); ++i) EXPECT_EQ(v(i), 0.0);
  }
}

TEST(Arena, RefusesMoreThanWasPlanned) {
  Arena planning = Arena::planning();
  planning.take<float>(MemoryKind::workspace, 10);
  Arena arena(planning.plan());
  arena.take<float>(MemoryKind::workspace, 10);
  EXPECT_THROW(arena.take<float>(MemoryKind::workspace, 1), Error);
}

// A part on the host is no part of the device's total; a smaller arena may lie in a larger one.
TEST(Arena, KeepsStatesOfTheHostApart) {
  Arena planning = Arena::planning();
  planning.take<double>(MemoryKind::parameters, 33);
  planning.take<float>(MemoryKind::host_optimizer, 100);
  EXPECT_EQ(planning.plan().total(), 512u);
  EXPECT_EQ(planning.plan().on_host(), 512u);

  Arena arena(planning.plan());
  const auto fill = [](Arena& in) {
    const Vector<double> here = in.take<double>(MemoryKind::parameters, 33);
    const Vector<float> there = in.take<float>(MemoryKind::host_optimizer, 100);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(there.data()) % 256, 0u);
    for (std::size_t i = 0; i < there.size(); ++i) EXPECT_EQ(there(i), 0.0f);
    for (std::size_t i = 0; i < there.size(); ++i) there(i) = 1.0f;
    for (std::size_t i = 0; i < here.size(); ++i) EXPECT_EQ(here(i), 0.0);
    return there.data();
  };
  const float* const first = fill(arena);
  EXPECT_THROW(arena.take<float>(MemoryKind::host_optimizer, 100), Error);
  Arena again(planning.plan(), arena);
  EXPECT_EQ(fill(again), first);

  planning.take<float>(MemoryKind::host_optimizer, 1);
  EXPECT_THROW(Arena(planning.plan(), arena), Error);
}

// The stages of a run take turns in one memory: one may be the largest on the device, another on the host.
TEST(Arena, OfSeveralPlansInTheMemoryThatCoversThem) {
  Arena wide = Arena::planning(), long_on_host = Arena::planning();
  wide.take<double>(MemoryKind::workspace, 1000);
  wide.take<float>(MemoryKind::host_optimizer, 10);
  long_on_host.take<double>(MemoryKind::workspace, 10);
  long_on_host.take<float>(MemoryKind::host_activations, 1000);
  const std::vector<MemoryPlan> plans{wide.plan(), long_on_host.plan()};
  const Arena whole(MemoryPlan::covering(plans));
  EXPECT_EQ(whole.plan().total(), plans[0].total());
  EXPECT_EQ(whole.plan().on_host(), plans[1].on_host());
  for (const MemoryPlan& plan : plans) EXPECT_EQ(Arena(plan, whole).plan().total(), plan.total());
  EXPECT_EQ(MemoryPlan::covering({plans.data(), 1}).bytes, plans[0].bytes);
}

TEST(ShardRange, CoversInOrderAndDiffersByOne) {
  for (index_t extent : {0, 1, 7, 64, 131}) {
    for (int parts : {1, 2, 3, 8}) {
      index_t next = 0;
      for (int i = 0; i < parts; ++i) {
        const Range r = shard_range(extent, parts, i);
        EXPECT_EQ(r.begin, next);
        EXPECT_GE(r.size(), extent / parts);
        EXPECT_LE(r.size(), extent / parts + 1);
        next = r.end;
      }
      EXPECT_EQ(next, extent);
    }
  }
}

}  // namespace
}  // namespace nanotron
