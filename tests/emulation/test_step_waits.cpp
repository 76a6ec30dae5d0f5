// ranks: 1 2
// timeout: 600
// The host waits for the device once in a step, at its end; so it does with experts whose GEMMs are grouped, ep = 1.

#include <gtest/gtest.h>

#include "emulation/scheduler.hpp"
#include "support/drawn_decks.hpp"
#include "support/trainer_run.hpp"

namespace nanotron {
namespace {

struct Case {
  const char* golden;
  std::vector<std::string> set;
  bool on_tensor_cores = false;  // by kernels that a build for AMD GPUs lacks
};

template <class T>
std::uint64_t waits_of_a_step(const deck::Config& config) {
  test::TrainerRun<T> run(config, test::world());
  run->train_step();
  run.device().fence();
  const std::uint64_t before = emulation::Scheduler::instance().host_waits();
  run->train_step();
  return emulation::Scheduler::instance().host_waits() - before;
}

TEST(StepWaits, AreOne) {
  int ranks = 0, tried = 0;
  MPI_Comm_size(test::world(), &ranks);
  const test::TokensOfDocuments tokens("step_waits", 20'000);
  for (const Case& c :
       std::vector<Case>{{"llama", {}},
                         {"llama", {"precision.compute=bf16", "precision.moments=bf16"}},
                         {"llama", {"precision.compute=fp8"}},
                         {"llama", {"optimizer.name=muon"}},
                         {"llama", {"parallel.zero_stage=1"}},
                         {"llama", {"parallel.zero_stage=3", "optimizer.name=muon"}},
                         {"llama", {"parallel.tp=2", "parallel.tp_mode=reduce_scatter"}},
                         {"llama", {"parallel.pp=2", "data.micro_batch_size=1"}},
                         {"mixtral", {"run.expert_gemms=grouped", "precision.compute=bf16"}, true},
                         {"qwen3_moe",
                          {"run.expert_gemms=grouped", "precision.compute=bf16", "parallel.tp=2",
                           "moe.capacity_factor=1.0", "moe.moe_intermediate_size=48", "parallel.recompute=full"},
                          true}}) {
    if (c.on_tensor_cores && !has_mma_kernels) continue;
    std::vector<std::string> set = c.set;
    set.emplace_back("checkpoint.resume=none");
    set.push_back("data.path='" + tokens.path() + "'");
    const std::optional<deck::Config> config = test::deck_if_legal(c.golden, set, ranks);
    EXPECT_TRUE(config || ranks == 1) << testing::PrintToString(c.set);
    if (!config) continue;
    const std::uint64_t waits = with_scalar_type(
        config->precision.compute, [&]<class T>(std::type_identity<T>) { return waits_of_a_step<T>(*config); });
    EXPECT_EQ(waits, 1u) << testing::PrintToString(c.set);
    ++tried;
  }
  EXPECT_GE(tried, 3);
}

}  // namespace
}  // namespace nanotron
