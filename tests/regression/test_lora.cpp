// ranks: 1 2 4
// timeout: 300
// Adapters beside frozen weights: the losses of PEFT on every grid, the same in every stage of ZeRO, resuming.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "nanotron/comm/watch/watched_groups.hpp"
#include "nanotron/trainer/plan/plan.hpp"
#include "support/comparison.hpp"
#include "support/device_values.hpp"
#include "support/grid.hpp"
#include "support/test_folder.hpp"
#include "support/trainer_run.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

using test::Grid;

constexpr std::int64_t steps = 10;

template <class F>
std::string error_of(const F& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string error_of(const deck::Config& config) {
  return error_of([&] { test::run_training(config, test::world(), 1); });
}

class Lora : public testing::Test {
 protected:
  void SetUp() override {
    MPI_Comm_size(test::world(), &ranks_);
    MPI_Comm_rank(test::world(), &rank_);
  }

  // As tests/golden/make_lora_golden.py.
  static deck::Config golden() {
    deck::Config config = test::golden_config("llama");
    config.lora = {.rank = 3,
                   .alpha = 5.0,
                   .targets = "down_proj gate_proj up_proj k_proj o_proj q_proj v_proj",
                   .base = config.checkpoint.resume};
    config.checkpoint.resume = (test::test_folder() / "golden" / "lora" / "step_00000000").string();
    return config;
  }

  std::optional<deck::Config> on(const deck::Config& config, const Grid& g) const {
    return test::on_grid(config, g, ranks_);
  }

  int ranks_ = 1, rank_ = 0;
};

TEST_F(Lora, HasTheLossesOfPeftOnEveryGrid) {
  std::ifstream file(test::test_folder() / "golden" / "lora" / "golden.json");
  const nlohmann::json expected = nlohmann::json::parse(file).at("fp64");
  const std::vector<double> losses = expected.at("losses"), norms = expected.at("grad_norms");
  double worst = 0.0;
  for (const Grid& g : {Grid{}, Grid{.zero = 1}, Grid{.zero = 3}, Grid{.tp = 2}, Grid{.pp = 2},
                        Grid{.tp = 2, .mode = deck::TpMode::reduce_scatter}, Grid{.tp = 2, .zero = 2}, Grid{.cp = 2},
                        Grid{.tp = 2, .pp = 2, .recompute = deck::Recompute::full},
                        Grid{.pp = 2, .zero = 1, .recompute = deck::Recompute::selective}}) {
    const auto config = on(golden(), g);
    if (!config) continue;
    SCOPED_TRACE(text(g));
    const test::Numbers ours = test::run_training(*config, test::world(), steps);
    const double off = test::larger(test::largest_relative_difference(ours.losses, losses),
                                    test::largest_relative_difference(ours.grad_norms, norms));
    EXPECT_LT(off, 1e-10);
    worst = test::larger(worst, off);
    EXPECT_EQ(ours.counted.tensor_parallel, ours.predicted.tensor_parallel);
    EXPECT_EQ(ours.counted.data_parallel, ours.predicted.data_parallel);
    for (const auto& [name, numbers] : expected.at("parameters").items()) {
      double squares = 0.0;
      for (const double x : ours.parameters.at(name)) squares += x * x;
      const double l2 = numbers.at("l2");
      EXPECT_NEAR(std::sqrt(squares), l2, 1e-9 * l2) << name;
    }
  }
  if (rank_ == 0) std::printf("adapters on %d ranks: worst relative difference from PEFT %.1e\n", ranks_, worst);
}

// With one micro-batch and without clipping, whose norm is summed by pieces, no bit differs: in bf16 frozen weights are
// stored in bf16 alone, of stage 3 in shards.
TEST_F(Lora, EveryStageHasTheSameBits) {
  deck::Config wide = golden();
  wide.optimizer.clip_grad_norm = 0.0;
  const test::Numbers in_fp64 = test::run_training(*on(wide, {}), test::world(), steps);
  for (const ScalarType type : {ScalarType::fp32, ScalarType::bf16}) {
    deck::Config config = golden();
    config.precision.compute = type;
    config.optimizer.clip_grad_norm = 0.0;
    config.data.micro_batch_size = config.data.global_batch_size / ranks_;
    const test::Numbers reference = test::run_training(*on(config, {}), test::world(), steps);
    for (const int stage : {1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{} stage {}", name_of(type), stage));
      const test::Numbers ours = test::run_training(*on(config, {.zero = stage}), test::world(), steps);
      EXPECT_EQ(ours.losses, reference.losses);
      EXPECT_EQ(ours.parameters, reference.parameters);
    }
    EXPECT_LT(test::largest_relative_difference(reference.losses, in_fp64.losses), 1e-2);
  }
}

// The hash that names the base is of its manifest, wherever that is.
TEST_F(Lora, TheManifestOfTheBaseMayBeALink) {
  const test::TemporaryFolder folder(test::world(), "lora_link");
  deck::Config config = *on(golden(), {});
  const std::filesystem::path base = folder / "step_00000000", original = config.lora.base;
  if (rank_ == 0) {
    std::filesystem::create_directory(base);
    for (const char* name : {"checkpoint.h5", "manifest.json"})
      std::filesystem::create_symlink(std::filesystem::absolute(original) / name, base / name);
  }
  MPI_Barrier(test::world());
  config.lora.base = base.string();
  EXPECT_EQ(test::run_training(config, test::world(), 1).losses.size(), 1u);
}

TEST_F(Lora, ResumesOnAnotherGrid) {
  const test::TemporaryFolder folder(test::world(), "lora");
  deck::Config config = golden();
  const test::Numbers whole = test::run_training(*on(config, {}), test::world(), steps);
  config.checkpoint.directory = folder.path().string();
  test::run_training(*on(config, {.zero = ranks_ > 1 ? 2 : 0}), test::world(), steps / 2, true);
  config.checkpoint.resume = "auto";
  const auto second = ranks_ > 1 ? on(config, {.tp = 2}) : on(config, {});
  const test::Numbers resumed = test::run_training(*second, test::world(), steps);
  ASSERT_EQ(resumed.losses.size(), static_cast<std::size_t>(steps / 2));
  for (std::size_t i = 0; i < resumed.losses.size(); ++i)
    EXPECT_NEAR(resumed.losses[i], whole.losses[i + steps / 2], 1e-11 * whole.losses[i + steps / 2]);
  test::expect_same_state(resumed.parameters, whole.parameters);
  test::expect_same_state(resumed.exp_avg_sq, whole.exp_avg_sq);
}

class OperationCount final : public comm::PayloadWatch {
 public:
  std::uint64_t gives(comm::Line, const void*, std::size_t) override { return ++count; }
  void arrived(std::uint64_t) override {}
  std::uint64_t count = 0;
};

TEST_F(Lora, OneAllReduceSumsThePartialGradientsOfALayer) {
  const auto operations = [&](const char* targets) -> std::uint64_t {
    auto config = on(golden(), {.tp = 2});
    if (!config) return 0;
    config->lora = {.rank = 4, .targets = targets, .base = "initial"};  // of multiples of 64 elements: no padding
    config->checkpoint.resume = "none";
    trainer::resolve(*config, ranks_);
    test::TrainerRun<double> run(*config, test::world());
    run->resume();
    OperationCount watch;
    const comm::WatchedGroups watched(run.grid(), watch);
    run->train_step();
    return watch.count;
  };
  EXPECT_EQ(operations("*_proj"), operations("o_proj"));
}

// Of rank 4 nothing is compressed: all adapters have rank 3. Of rank 1 all are.
TEST_F(Lora, CompressesGradientsOfAdapters) {
  if (ranks_ == 1) GTEST_SKIP() << "one rank reduces no gradients";
  deck::Config config = *on(golden(), {});
  config.precision.compute = ScalarType::fp32;
  const test::Numbers plain = test::run_training(config, test::world(), steps);
  config.parallel.compression = deck::Compression::powersgd;
  const auto worst = [&](std::int64_t rank) {
    config.parallel.powersgd_rank = rank;
    const test::Numbers ours = test::run_training(config, test::world(), steps);
    EXPECT_EQ(ours.counted.data_parallel, ours.predicted.data_parallel);
    return test::largest_relative_difference(ours.losses, plain.losses);
  };
  EXPECT_LT(worst(4), 1e-6);
  const double compressed = worst(1);
  EXPECT_GT(compressed, 1e-6) << "nothing was compressed";
  EXPECT_LT(compressed, 1e-2);
}

// Elements of the 1-D and 2-D parameters of the model, and of adapters of rank 3.
constexpr std::size_t of_1d = 5 * 32, of_2d = 2 * 131 * 32 + 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 88 * 32),
                      of_adapters = 2 * 3 * (2 * (32 + 32) + 2 * (32 + 16) + 3 * (32 + 88));

std::size_t planned(deck::Config config, MemoryKind kind) {
  config.parallel.dp = 1;
  trainer::resolve(config, 1);
  return trainer::plan_step(config, {}).memory.bytes[static_cast<std::size_t>(kind)];
}

// Frozen weights take no gradients, no moments and, in bf16, no second copy. The rest is padding of each matrix and the
// gradients of 1-D parameters.
TEST_F(Lora, PlansTheMemoryOfAdaptersAlone) {
  deck::Config config = golden();
  const auto expect = [&](MemoryKind kind, std::size_t bytes) {
    const std::size_t ours = planned(config, kind), padding = 64 * 8 * 2 * 24;
    EXPECT_GE(ours, bytes) << static_cast<int>(kind);
    EXPECT_LE(ours, bytes + padding) << static_cast<int>(kind);
  };
  for (const ScalarType type : {ScalarType::fp64, ScalarType::fp32, ScalarType::bf16}) {
    SCOPED_TRACE(name_of(type));
    config.precision.compute = type;
    const std::size_t master = type == ScalarType::fp64 ? 8 : 4;
    expect(MemoryKind::gradients, master * of_adapters);
    expect(MemoryKind::optimizer, 2 * master * of_adapters);
    expect(MemoryKind::parameters,
           type == ScalarType::bf16 ? 2 * of_2d + 4 * of_1d + 6 * of_adapters : master * (of_1d + of_2d + of_adapters));
  }
}

// The middle stage of this pipeline has one unit, whose first shard begins where its slot does.
TEST_F(Lora, StoresShardsOfFrozenWeightsOutsideTheirSlots) {
  deck::Config config = *on(golden(), {.zero = 3});
  config.model.num_hidden_layers = config.parallel.pp = 3;
  config.parallel.dp = 2;
  config.precision.compute = ScalarType::bf16;
  config.lora.base = "initial";
  config.checkpoint.resume = "none";
  trainer::resolve(config, 6);
  const auto parameters = [&](int dp, int pp) {
    return trainer::plan_step(config, {.dp = dp, .pp = pp}).memory.bytes[static_cast<int>(MemoryKind::parameters)];
  };
  for (int stage = 0; stage < 3; ++stage) EXPECT_EQ(parameters(0, stage), parameters(1, stage)) << stage;
}

// Of weights that no update writes, where GEMMs read another copy: in bf16 with ZeRO-3.
TEST_F(Lora, ABitThatFlipsInAFrozenWeightIsFound) {
  deck::Config config = *on(golden(), {.zero = ranks_ > 1 ? 3 : 0});
  config.precision.compute = ScalarType::bf16;
  config.run.check_memory_every = 1;
  trainer::resolve(config, ranks_);
  const test::TemporaryFolder folder(test::world(), "lora_flip");
  config.run.output_dir = folder.path().string();
  test::TrainerRun<bf16> run(config, test::world());
  run->resume();
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(run->train_step().updated);
  const nn::ParameterBuffers<bf16>& p = run->state().model.parameters();
  EXPECT_EQ(p.frozen.data() == p.compute.data(), ranks_ == 1);
  const auto twice = [](float weight) { return bf16(weight == 0.0F ? 1.0F : 2.0F * weight); };
  test::set_value(p.frozen, 1000, twice(static_cast<float>(test::value_at(p.frozen, 1000))));
  const std::string message = error_of([&] { run->train_step(); });
  EXPECT_NE(message.find("memory changed between two updates"), std::string::npos) << message;
  EXPECT_NE(message.find("weights of model/"), std::string::npos) << message;
}

// A rollback leaves frozen weights in memory, unless they are not as they were read.
TEST_F(Lora, GoesBackWithTheBaseInMemory) {
  const test::TemporaryFolder folder(test::world(), "lora_back");
  deck::Config config = *on(golden(), {});
  const std::filesystem::path base = folder / "base";
  if (rank_ == 0) std::filesystem::copy(config.lora.base, base, std::filesystem::copy_options::recursive);
  MPI_Barrier(test::world());
  config.lora.base = base.string();
  config.run.output_dir = folder.path().string();
  trainer::resolve(config, ranks_);
  test::TrainerRun<double> run(config, test::world());
  run->resume();
  const trainer::StepResult first = run->train_step();
  MPI_Barrier(test::world());
  if (rank_ == 0) std::filesystem::rename(base, folder / "away");
  MPI_Barrier(test::world());
  run->resume();
  EXPECT_EQ(run->train_step().loss, first.loss);
  if (rank_ == ranks_ - 1) {
    const Vector<double> weights = run->state().model.parameters().master;
    test::set_value(weights, 1000, 2.0 * test::value_at(weights, 1000) + 1.0);
  }
  EXPECT_NE(error_of([&] { run->resume(); }).find("lora%base"), std::string::npos);
  if (rank_ == 0) std::filesystem::rename(folder / "away", base);
  MPI_Barrier(test::world());
  run->resume();
  EXPECT_EQ(run->train_step().loss, first.loss);
}

TEST_F(Lora, RefusesOtherAdaptersAndWholeWeights) {
  deck::Config config = *on(golden(), {});
  config.lora.alpha = 6.0;
  EXPECT_NE(error_of(config).find("correct &lora"), std::string::npos) << error_of(config);
  config = *on(golden(), {});
  config.checkpoint.resume = config.lora.base;
  EXPECT_NE(error_of(config).find("output_dir of its own"), std::string::npos) << error_of(config);
  config = *on(golden(), {});
  config.lora.base = (test::test_folder() / "golden" / "qwen2" / "step_00000000").string();
  EXPECT_NE(error_of(config).find("different model"), std::string::npos) << error_of(config);
  for (const char* base : {"nowhere", "adapters"}) {
    config = *on(golden(), {});
    config.lora.base = base == std::string("nowhere") ? base : config.checkpoint.resume;
    const std::string error = error_of(config);
    EXPECT_NE(error.find("lora%base"), std::string::npos) << error;
    EXPECT_EQ(error.find("checkpoint%resume"), std::string::npos) << error;
  }
  config = *on(golden(), {});
  config.lora = {};
  EXPECT_NE(error_of(config).find("merge"), std::string::npos) << error_of(config);
}

}  // namespace
}  // namespace nanotron
