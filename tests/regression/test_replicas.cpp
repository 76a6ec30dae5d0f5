// ranks: 2 4 8
// A bit that flips on one replica is found within check_replicas_every steps, and the rank is named: in anything
// that another rank holds too.

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "nanotron/trainer/loop/trainer.hpp"
#include "nanotron/trainer/plan/plan.hpp"
#include "nanotron/trainer/state/run_resources.hpp"
#include "support/trainer_run.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

// Flips the lowest bit of one weight that is not zero, so that nothing but the bit itself tells.
void flip_a_bit(const Vector<float>& weights, index_t at) {
  const auto host = Kokkos::create_mirror_view(weights);
  Kokkos::deep_copy(host, weights);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &host(at), sizeof bits);
  bits ^= 8u;  // the rounding of an update could hide the last bit
  std::memcpy(&host(at), &bits, sizeof bits);
  Kokkos::deep_copy(weights, host);
}

struct Case {
  const char* name;
  int stage, size;  // of ZeRO
  const char* model = "llama";
  int tp = 1;
  const char* tensor = "";  // that all tensor-parallel ranks hold; else a piece of the first unit
  bool is_frozen = false;   // beside adapters
};

class ReplicasInTraining : public testing::TestWithParam<Case> {};

TEST_P(ReplicasInTraining, AFlippedBitIsFoundWithinTheInterval) {
  constexpr std::int64_t interval = 4;
  deck::Config config = test::golden_config(GetParam().model);
  config.parallel.zero_stage = GetParam().stage;
  config.parallel.zero_size = GetParam().size;
  config.precision.compute = ScalarType::fp32;
  config.run.check_replicas_every = interval;
  config.parallel.tp = GetParam().tp;
  if (GetParam().is_frozen) config.lora = {.rank = 3, .base = std::exchange(config.checkpoint.resume, "none")};
  int ranks = 0;
  MPI_Comm_size(test::world(), &ranks);
  if (ranks % config.parallel.tp != 0) return;
  config.parallel.dp = ranks / config.parallel.tp;
  if (config.parallel.zero_size >= ranks) return;  // the piece has no copy
  trainer::resolve(config, ranks);

  comm::ProcessGrid grid = trainer::make_grid(test::world(), config);
  Log log(false, grid.world().rank());
  Timers timers;
  Device device(timers);
  const data::TokenFile tokens(config.data.path);
  trainer::Loaders loaders{data::BatchLoader(config.data, 1, tokens, data::Split::training, grid.dp_rank(),
                                             static_cast<int>(config.parallel.dp)),
                           {}};
  Arena arena(trainer::plan_step(config, grid.coordinate()).memory);
  trainer::Trainer<float> run(config, {}, grid, device, arena, loaders, log);
  run.resume();
  for (int i = 0; i < 5; ++i) run.train_step();  // one comparison passes

  const int victim = ranks - 1;
  const trainer::TrainingState<float>& state = run.state();
  const nn::ParameterBuffers<float>& p = state.model.parameters();
  const model::ParameterTable& table = state.model.table();
  const std::string tensor = GetParam().tensor;
  const index_t at = tensor.empty() ? model::shard_of(table.units.front(), state.sharding).begin + 123
                                    : table[tensor].offset_of(0) + 5;
  if (grid.world().rank() == victim) flip_a_bit(p.master, p.layouts.master.at(at));
  std::string message;
  int steps = 0;
  for (; steps < interval && message.empty(); ++steps) {
    try {
      run.train_step();
    } catch (const Error& error) {
      message = error.what();
      EXPECT_EQ(error.exit_code(), ExitCode::system_error);
    }
  }
  EXPECT_EQ(steps, 3) << "after step 8";
  EXPECT_NE(message.find("rank " + std::to_string(victim)), std::string::npos) << message;
  EXPECT_NE(message.find("equal after step 4"), std::string::npos) << message;
}

// Of four tensor-parallel ranks one has another norm: on one replica that is its own fault; on both it came with the
// reduced gradients, from either.
TEST(ReplicasOfTensorParallelRanks, WhichDifferOnAllReplicasNameNoHost) {
  deck::Config config = test::golden_config("llama");
  config.precision.compute = ScalarType::fp32;
  config.parallel.tp = 4, config.parallel.dp = 2;
  config.model.num_key_value_heads = 4;
  int ranks = 0, rank = 0;
  MPI_Comm_size(test::world(), &ranks);
  MPI_Comm_rank(test::world(), &rank);
  if (ranks != 8) GTEST_SKIP() << "for 8 ranks";
  const test::TemporaryFolder folder(test::world(), "replicas");
  for (const bool on_both : {true, false}) {
    config.run.output_dir = (folder / (on_both ? "both" : "one")).string();
    if (rank == 0) std::filesystem::create_directories(config.run.output_dir);
    trainer::resolve(config, ranks);
    test::TrainerRun<float> run(config, test::world());
    run->train_step();
    const trainer::TrainingState<float>& state = run->state();
    const comm::GridCoordinate at = comm::coordinate_of(comm::shape_of(config), rank);
    const nn::ParameterBuffers<float>& p = state.model.parameters();
    const index_t norm = state.model.table()["model/layers/input_layernorm/weight"].offset_of(0) + 5;
    if (at.tp == 1 && (on_both || at.dp == 0)) flip_a_bit(p.master, p.layouts.master.at(norm));
    std::string message;
    try {
      run->save();
    } catch (const Error& error) {
      message = error.what();
    }
    EXPECT_NE(message.find("weights or moments differ between ranks that must have the same ones"), std::string::npos)
        << message;
    MPI_Barrier(test::world());
    const bool is_excluded = std::filesystem::exists(std::filesystem::path(config.run.output_dir) / "excluded_hosts");
    EXPECT_EQ(is_excluded, !on_both);
    EXPECT_EQ(message.find("excluded_hosts excludes it") != std::string::npos, !on_both) << message;
  }
}

INSTANTIATE_TEST_SUITE_P(Holders, ReplicasInTraining,
                         testing::Values(Case{"Stage0", 0, 0}, Case{"Stage1", 1, 2}, Case{"Stage2", 2, 2},
                                         Case{"Stage3", 3, 2},
                                         Case{.name = "Frozen", .stage = 0, .size = 0, .is_frozen = true},
                                         Case{.name = "FrozenStage2", .stage = 2, .size = 2, .is_frozen = true},
                                         Case{.name = "FrozenStage3", .stage = 3, .size = 2, .is_frozen = true},
                                         Case{.name = "FrozenNorm",
                                              .stage = 0,
                                              .size = 0,
                                              .tp = 2,
                                              .tensor = "model/layers/input_layernorm/weight",
                                              .is_frozen = true},
                                         Case{"Norm", 0, 0, "llama", 2, "model/layers/input_layernorm/weight"},
                                         Case{"Router", 0, 0, "qwen2_moe", 2, "model/layers/mlp/gate/weight"}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace nanotron
