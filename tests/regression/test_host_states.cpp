// ranks: 1 2 4
// optimizer%state_memory = 'host': the bits of a run with the states on the device, the same plan except the place of
// the states, and checkpoints that either reads.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "nanotron/trainer/plan/plan.hpp"
#include "nanotron/trainer/plan/roofline.hpp"
#include "support/test_folder.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

using Keys = std::vector<std::string>;

class HostStates : public testing::TestWithParam<Keys> {
 protected:
  void SetUp() override { MPI_Comm_size(test::world(), &ranks_); }

  deck::Config config_of(deck::StateMemory memory, const std::string& directory = "") const {
    Keys set = GetParam();
    const Keys grid = ranks_ == 4   ? Keys{"parallel.tp=2", "parallel.dp=2", "parallel.zero_stage=3"}
                      : ranks_ == 2 ? Keys{"parallel.dp=2", "parallel.zero_stage=1"}
                                    : Keys{"parallel.dp=1"};
    set.insert(set.end(), grid.begin(), grid.end());
    deck::Config config = test::golden_config("qwen3", set);
    config.optimizer.state_memory = memory;
    if (!directory.empty()) config.checkpoint.directory = directory;
    return config;
  }
  int ranks_ = 1;
};

void expect_same(const test::Numbers& ours, const test::Numbers& theirs) {
  EXPECT_EQ(ours.losses, theirs.losses);
  EXPECT_EQ(ours.grad_norms, theirs.grad_norms);
  EXPECT_EQ(ours.parameters, theirs.parameters);
  EXPECT_EQ(ours.states, theirs.states);
  EXPECT_EQ(ours.ema, theirs.ema);
}

TEST_P(HostStates, ChangeNoBit) {
  constexpr auto device = deck::StateMemory::device, host = deck::StateMemory::host;
  const test::TemporaryFolder folder(test::world(), "host_states");
  const test::Numbers all = test::run_training(config_of(device), test::world(), 8);
  expect_same(test::run_training(config_of(host), test::world(), 8), all);

  deck::Config config = config_of(device, folder.path().string());
  test::run_training(config, test::world(), 4, true);
  config = config_of(host, folder.path().string());
  config.checkpoint.resume = "auto";
  const test::Numbers resumed = test::run_training(config, test::world(), 8);
  EXPECT_EQ(resumed.losses, std::vector<double>(all.losses.begin() + 4, all.losses.end()));
  EXPECT_EQ(resumed.parameters, all.parameters);
  EXPECT_EQ(resumed.states, all.states);
}

TEST_P(HostStates, AreAllOfTheOptimizersMemory) {
  const auto of = [](const MemoryPlan& plan, MemoryKind kind) { return plan.bytes[static_cast<std::size_t>(kind)]; };
  for (const Processor processor : {built_for, Processor::gpu}) {
    const MemoryPlan on_device = trainer::plan_step(config_of(deck::StateMemory::device), {}, processor).memory;
    const MemoryPlan on_host = trainer::plan_step(config_of(deck::StateMemory::host), {}, processor).memory;
    EXPECT_GT(of(on_device, MemoryKind::optimizer), 0u);
    EXPECT_EQ(on_device.on_host(), 0u);
    EXPECT_EQ(of(on_host, MemoryKind::optimizer), 0u);
    EXPECT_EQ(on_host.on_host(), of(on_device, MemoryKind::optimizer));
    const std::size_t buffers = of(on_host, MemoryKind::workspace) - of(on_device, MemoryKind::workspace);
    EXPECT_EQ(on_host.total() + on_host.on_host(), on_device.total() + buffers);
    if (processor == Processor::cpu)
      EXPECT_EQ(buffers, 0u);
    else
      EXPECT_GT(buffers, 0u);
    EXPECT_LT(buffers, on_host.on_host());
    EXPECT_EQ(on_device.table().find("in host memory"), std::string::npos);
    EXPECT_NE(on_host.table().find("in host memory"), std::string::npos);
  }
}

// A step brings each of them once and takes it back, beside kernels that read and write as many bytes of the device.
TEST_P(HostStates, AreCountedOnTheLink) {
  double kernels = 0.0, in = 0.0, out = 0.0;
  const auto add = [&](deck::StateMemory memory, double sign) {
    const WorkList work = trainer::step_work(config_of(memory), {}, Processor::gpu, EventOrder::kept);
    for (const WorkRow& row : work.rows()) kernels += sign * static_cast<double>(row.calls) * row.work.bytes();
    for (const StepEvent& event : work.events()) {
      if (event.kind != StepEvent::Kind::start) continue;
      const comm::PlannedOperation& operation = work.operations()[event.index];
      if (operation.group == comm::GroupKind::from_host) in += operation.bytes;
      if (operation.group == comm::GroupKind::to_host) out += operation.bytes;
    }
  };
  add(deck::StateMemory::device, 1.0);
  EXPECT_EQ(in, 0.0);
  add(deck::StateMemory::host, -1.0);
  const auto bytes = static_cast<double>(trainer::plan_step(config_of(deck::StateMemory::host), {}).memory.on_host());
  EXPECT_LE(in, bytes);
  EXPECT_GT(in, 0.9 * bytes);  // all but what is between tensors
  EXPECT_EQ(in, out);
  EXPECT_NEAR(kernels, 0.0, 1.0);
}

// The update goes beside the first forward of pipelines too, source by source, with gathers and experts; beside
// validation; and clips of queries and keys wait for it.
TEST(HostStatesOnGrids, ChangeNoBit) {
  int ranks = 1;
  MPI_Comm_size(test::world(), &ranks);
  const Keys all{"model.num_hidden_layers=4", "data.micro_batch_size=1",      "data.global_batch_size=8",
                 "optimizer.ema_decay=0.9",   "data.validation_fraction=0.1", "data.validation_every=2",
                 "data.validation_batches=1"};
  const std::vector<Keys> of_one{{"optimizer.qk_clip=0.1", "model.qk_norm=f"}, {"optimizer.name=schedule_free_adamw"}};
  const std::vector<Keys> of_two{{"parallel.pp=2", "parallel.pp_schedule=zero_bubble"},
                                 {"parallel.dp=2", "parallel.zero_stage=2", "precision.compute=bf16"}};
  const std::vector<Keys> of_four{
      {"parallel.pp=2", "parallel.dp=2", "parallel.zero_stage=1", "parallel.pp_schedule=interleaved_1f1b",
       "precision.compute=bf16"},
      {"parallel.tp=2", "parallel.dp=2", "parallel.zero_stage=1", "parallel.tp_mode=reduce_scatter"}};
  for (const char* model : {"qwen3", "qwen2_moe"}) {
    for (Keys keys : ranks == 1 ? of_one : ranks == 2 ? of_two : of_four) {
      SCOPED_TRACE(fmt::format("{} {}", model, fmt::join(keys, " ")));
      keys.insert(keys.end(), all.begin(), all.end());
      const auto run = [&](const char* memory) {
        Keys set = keys;
        set.push_back(fmt::format("optimizer.state_memory={}", memory));
        deck::Config config = test::golden_config(model, set);
        config.checkpoint.resume = "none";
        return test::run_training(config, test::world(), 5);
      };
      expect_same(run("host"), run("device"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, HostStates,
    testing::Values(Keys{"optimizer.name=adamw"}, Keys{"precision.compute=bf16", "precision.moments=bf16"},
                    Keys{"optimizer.name=muon", "optimizer.ema_decay=0.9", "precision.compute=bf16"},
                    Keys{"optimizer.name=lion"}, Keys{"optimizer.name=ademamix"},
                    Keys{"optimizer.name=schedule_free_adamw"}, Keys{"optimizer.name=sophia"}),
    [](const auto& info) { return fmt::format("case{}", info.index); });

}  // namespace
}  // namespace nanotron
