// timeout: 300
// Steps of shipped decks on shipped machines: what has to hold of any prediction; and the search.

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/layer_set.hpp"
#include "nanotron/deck/read_deck.hpp"
#include "nanotron/model/cost.hpp"
#include "nanotron/simulation/grid_search.hpp"
#include "nanotron/simulation/step_prediction.hpp"
#include "nanotron/trainer/plan/kernel_time.hpp"
#include "nanotron/trainer/plan/plan.hpp"
#include "nanotron/trainer/plan/roofline.hpp"
#include "nanotron/trainer/start/deck_features.hpp"
#include "support/test_folder.hpp"

namespace nanotron::simulation {
namespace {

std::string input(const std::string& name) { return (test::test_folder() / "../input" / name).string(); }

deck::Machine machine(const std::string& name) {
  const std::string path = input("machines/" + name);
  return deck::read_machine(path, deck::read_deck_file(path));
}

// A small Llama; `set` may be anything.
deck::Config small(std::vector<std::string> set, int ranks) {
  const std::vector<std::string> sizes{"run.steps=1",
                                       "model.hidden_size=1024",
                                       "model.num_hidden_layers=8",
                                       "model.num_attention_heads=16",
                                       "model.intermediate_size=2816",
                                       "model.vocab_size=32000",
                                       "data.sequence_length=1024",
                                       "data.global_batch_size=64",
                                       "precision.compute=bf16",
                                       "data.path=none"};
  set.insert(set.begin(), sizes.begin(), sizes.end());
  deck::Config config = trainer::read_deck_text("&run /\n&model /\n&data /\n", "small", set, nullptr, ranks);
  trainer::resolve(config, ranks);
  return config;
}

double seconds(const std::vector<std::string>& set, int ranks, const deck::Machine& m) {
  return predict_step(small(set, ranks), m).seconds;
}

// On one rank nothing is communicated: the sum of the kernels.
TEST(StepPrediction, OfOneRankIsTheSumOfItsKernels) {
  const deck::Machine m = machine("h100.nml");
  const deck::Config config = small({"parallel.dp=1"}, 1);
  double sum = 0.0;
  const WorkList work = trainer::step_work(config, {}, Processor::gpu);
  for (const WorkRow& row : work.rows()) sum += trainer::row_seconds(row, m);
  EXPECT_NEAR(predict_step(config, m).seconds, sum, 1e-9 * sum);
}

// The number that the pattern captures in the text of --plan.
double number_in(const std::string& text, const std::string& pattern) {
  std::smatch found;
  const bool is_there = std::regex_search(text, found, std::regex(pattern));
  EXPECT_TRUE(is_there) << pattern << "\n" << text;
  return is_there ? std::stod(found[1]) : 0.0;
}

// What --plan prints twice is the same: kernels of the roofline and of the timeline, and on one rank the step.
TEST(StepPrediction, OfEveryShippedDeckHasTheKernelsOfTheRoofline) {
  struct Shipped {
    const char* deck;
    int ranks;
  };
  int compared = 0;
  for (const Shipped& s : {Shipped{"llama3_1b", 8},
                           {"llama3_3b", 1},
                           {"llama3_8b", 64},
                           {"llama_30m", 1},
                           {"llama_70b", 256},
                           {"llama_7b", 1},
                           {"mixtral_8x7b", 64},
                           {"mixtral_90m", 2},
                           {"quickstart", 2},
                           {"qwen2_1b5", 1}}) {
    for (const char* file : {"h100.nml", "h200.nml"}) {
      SCOPED_TRACE(testing::Message() << s.deck << " on " << file);
      const deck::Machine m = machine(file);
      std::vector<std::string> set;
      if (s.deck == std::string("quickstart")) set = {"model.vocab_size=257", "data.path=none"};
      const std::string path = input(std::string(s.deck) + ".deck");
      deck::Config config = trainer::read_deck_text(deck::read_deck_file(path), path, set, nullptr, s.ranks);
      trainer::resolve(config, s.ranks);
      const std::string plan = trainer::describe_plan(config, m), timeline = describe_prediction(config, m);
      if (plan.find("  fits: ") == std::string::npos) continue;
      const double roofline = number_in(plan, R"(\n  step +\d+ +\d+ +[\d.]+ +[\d.]+ +([\d.]+) +100\.0 %)");
      double kernels = 0.0;
      for (const char* share : {"GEMMs", "attention", "other kernels"}) {
        kernels += number_in(timeline, std::string("\n  ") + share + R"( +([\d.]+) ms)");
      }
      EXPECT_NEAR(roofline, kernels, 0.02 * kernels);
      if (s.ranks == 1) {
        EXPECT_NEAR(roofline, number_in(timeline, R"(\n  step +([\d.]+) ms)"), 0.02 * roofline);
      }
      EXPECT_EQ(plan.find(" % of 989 TFLOP/s"), std::string::npos) << "a second MFU";
      ++compared;
    }
  }
  EXPECT_GE(compared, 16);
}

// Better machines are faster, each by itself.
TEST(StepPrediction, IsMonotoneInTheMachine) {
  const std::vector<std::string> set{"parallel.dp=4", "parallel.tp=2", "parallel.pp=2",
                                     "parallel.tp_mode=reduce_scatter"};
  const deck::Machine m = machine("a100_80gb.nml");
  const double before = seconds(set, 16, m);
  const auto faster = [&](auto change) {
    deck::Machine other = m;
    change(other);
    return seconds(set, 16, other);
  };
  EXPECT_LT(faster([](deck::Machine& o) { o.gemm_bf16 *= 2.0; }), before);
  EXPECT_LT(faster([](deck::Machine& o) { o.memory *= 2.0; }), before);
  EXPECT_LT(faster([](deck::Machine& o) { o.launch = 0.0; }), before);
  EXPECT_LT(faster([](deck::Machine& o) { o.node.link *= 2.0; }), before);
  EXPECT_LT(faster([](deck::Machine& o) { o.network.rail *= 4.0; }), before);
  EXPECT_LT(faster([](deck::Machine& o) { o.node.latency = 0.0; }), before);
}

// ZeRO-1: weights are gathered beside the next forward, as in a run, not after the update.
TEST(StepPrediction, GathersWeightsBesideTheNextForward) {
  deck::Machine m = machine("a100_80gb.nml");
  m.collective_share = 0.0;
  const std::vector<std::string> set{"parallel.dp=8", "parallel.zero_stage=1", "data.global_batch_size=8"};
  const StepPrediction p = predict_step(small(set, 8), m);
  const double weights = 2.0 * (8.0 * (4.0 * 1024.0 * 1024.0 + 3.0 * 1024.0 * 2816.0) + 2.0 * 32000.0 * 1024.0);
  const double gather = collective_seconds(comm::Operation::all_gather, weights, {8, 1}, m);
  EXPECT_LT(p.shares[static_cast<std::size_t>(Share::data_parallel)], 0.8 * gather);
}

// One more GPU of the same kind is never faster than the slowest, whose GEMMs a spread of rates makes slower.
TEST(StepPrediction, WaitsForTheSlowestGpu) {
  deck::Machine m = machine("h100.nml");
  const auto slowest = [&](int ranks) {
    const std::vector<std::string> set{"parallel.dp=" + std::to_string(ranks)};
    const StepPrediction p = predict_step(small(set, ranks), m);
    const double gemms =
        p.shares[static_cast<std::size_t>(Share::gemm)] + p.shares[static_cast<std::size_t>(Share::attention)];
    return p.shares[static_cast<std::size_t>(Share::slowest)] / gemms;
  };
  EXPECT_EQ(slowest(1), 0.0);
  EXPECT_NEAR(slowest(2) / m.gemm_model.spread, 0.564, 0.03);  // 1 / sqrt(pi)
  EXPECT_NEAR(slowest(8) / m.gemm_model.spread, 1.424, 0.02);
  EXPECT_NEAR(slowest(64) / m.gemm_model.spread, 2.344, 0.03);
  m.gemm_model.spread = 0.0;
  EXPECT_EQ(slowest(8), 0.0);
}

TEST(StepPrediction, IsMonotoneInTheRun) {
  const deck::Machine m = machine("a100_80gb.nml");
  EXPECT_LT(seconds({"parallel.dp=16"}, 16, m), seconds({"parallel.dp=8"}, 8, m));
  EXPECT_LT(seconds({"parallel.dp=8", "parallel.overlap=.true."}, 8, m),
            seconds({"parallel.dp=8", "parallel.overlap=.false."}, 8, m));
  EXPECT_LT(seconds({"parallel.dp=8"}, 8, m), seconds({"parallel.dp=8", "parallel.recompute=full"}, 8, m));
  const auto of_schedule = [&](const std::string& name) {
    return seconds({"parallel.pp=4", "parallel.dp=1", "data.global_batch_size=8", "parallel.pp_schedule=" + name}, 4,
                   m);
  };
  EXPECT_LT(of_schedule("interleaved_1f1b"), of_schedule("gpipe"));
}

// With few micro-batches and stages as even as its own: the head, which is on rank 0 with the first layers, is small
// here. Its lists are made for parts of equal time; a long backward of the input costs part of what it gains.
TEST(StepPrediction, ZeroBubbleHasASmallerBubble) {
  const deck::Machine m = machine("a100_80gb.nml");
  const auto of_schedule = [&](const std::string& name) {
    return predict_step(small({"parallel.pp=4", "parallel.dp=1", "data.global_batch_size=8", "model.vocab_size=512",
                               "model.num_hidden_layers=16", "parallel.pp_schedule=" + name},
                              4),
                        m);
  };
  const StepPrediction plain = of_schedule("1f1b"), zero = of_schedule("zero_bubble");
  EXPECT_LT(zero.seconds, plain.seconds);
  const auto pipeline = static_cast<std::size_t>(Share::pipeline);
  EXPECT_LT(zero.shares[pipeline], plain.shares[pipeline]);
}

TEST(StepPrediction, IsEstimatedFromFewMicroBatches) {
  const deck::Machine m = machine("a100_80gb.nml");
  for (const char* schedule : {"1f1b", "interleaved_1f1b", "zero_bubble"}) {
    const deck::Config config =
        small({"parallel.pp=4", "parallel.dp=1", std::string("parallel.pp_schedule=") + schedule}, 4);
    const StepPrediction whole = predict_step(config, m), estimate = estimate_step(config, m);
    EXPECT_NEAR(estimate.seconds, whole.seconds, 0.01 * whole.seconds) << schedule;
    EXPECT_NEAR(estimate.tokens, whole.tokens, 0.5);
    EXPECT_NEAR(estimate.model_flops, whole.model_flops, 1e-6 * whole.model_flops);
  }
}

// Every deck of the table is legal, fits, and is not slower than the next.
TEST(GridSearch, FindsLegalGridsThatFit) {
  const deck::Machine m = machine("a100_80gb.nml");
  const std::string path = input("llama_7b.deck");
  const SearchResult result =
      search_grids(deck::read_deck_file(path), path, {"model.vocab_size=32000"}, 16, m, {.best = 5, .examined = 12});
  ASSERT_EQ(result.best.size(), 5U);
  double last = 0.0;
  for (const GridCandidate& c : result.best) {
    deck::Config again = trainer::read_deck_text(deck::canonical_deck(c.config), "grid", {}, nullptr, 16);
    trainer::resolve(again, 16);
    EXPECT_EQ(deck::grid_size(again.parallel), 16);
    EXPECT_TRUE(fits(again, m));
    EXPECT_NEAR(predict_step(again, m).seconds, c.prediction.seconds, 1e-9);
    EXPECT_GE(c.prediction.seconds, last);
    last = c.prediction.seconds;
  }
}

// With few micro-batches, room for activations and a pipeline that the deck asks for, zero bubble is the fastest.
TEST(GridSearch, FindsZeroBubble) {
  const deck::Machine m = machine("a100_80gb.nml");
  const std::string text = deck::canonical_deck(small({"parallel.dp=1"}, 1));
  const SearchResult result = search_grids(text, "small", {}, 16, m, {.best = 40, .examined = 60});
  const auto is_zero_bubble = [](const GridCandidate& c) {
    return c.config.parallel.pp_schedule == deck::PpSchedule::zero_bubble;
  };
  const auto fastest = std::ranges::find_if(result.best, is_zero_bubble);
  ASSERT_NE(fastest, result.best.end()) << describe(result, m);
  EXPECT_EQ(fastest->config.parallel.recompute, deck::Recompute::none);
  EXPECT_NE(std::ranges::find(fastest->overrides, "parallel.pp_schedule=zero_bubble"), fastest->overrides.end());
  deck::Config plain = fastest->config;
  plain.parallel.pp_schedule = deck::PpSchedule::one_f_one_b;
  EXPECT_LT(fastest->prediction.seconds, predict_step(plain, m).seconds);
  EXPECT_NE(describe(result, m).find(" 2 V"), std::string::npos);
}

// On a smaller GPU: one layer of each stage less does not fit.
TEST(GridSearch, RecomputesTheFewestLayersThatFit) {
  deck::Machine m = machine("a100_80gb.nml");
  m.node.memory_bytes = 42e9;
  const std::string path = input("llama_7b.deck");
  const SearchResult result =
      search_grids(deck::read_deck_file(path), path, {"model.vocab_size=32000"}, 8, m, {.best = 60, .examined = 60});
  int some = 0;
  for (const GridCandidate& c : result.best) {
    EXPECT_TRUE(fits(c.config, m));
    if (c.config.parallel.recompute == deck::Recompute::none || c.config.parallel.pp > 1) continue;
    const deck::LayerSet layers(c.config.parallel.recompute_layers);
    const std::int64_t count = layers.count(c.config.model.num_hidden_layers);
    if (count == 1) continue;
    deck::Config fewer = c.config;
    fewer.parallel.recompute_layers = "0-" + std::to_string(count - 2);
    EXPECT_FALSE(fits(fewer, m)) << count;
    if (count < c.config.model.num_hidden_layers) ++some;
  }
  EXPECT_GT(some, 0) << describe(result, m);
}

TEST(GridSearch, LeavesWhatTheMachineReserves) {
  deck::Machine m = machine("a100_80gb.nml");
  const deck::Config config = small({"parallel.dp=1"}, 1);
  const double buffer = memory_bytes(config, m, 1e300);
  m.node.reserved_bytes = 3e9;
  m.node.memory_bytes = buffer + 3e9;
  EXPECT_TRUE(fits(config, m));
  m.node.reserved_bytes += 1.0;
  EXPECT_FALSE(fits(config, m));
}

TEST(GridSearch, SaysThatNothingFits) {
  deck::Machine m = machine("a100_80gb.nml");
  const std::string path = input("llama_70b.deck");
  m.node.memory_bytes = 6e9;
  try {
    search_grids(deck::read_deck_file(path), path, {"model.vocab_size=32000"}, 8, m);
    FAIL() << "70 billion parameters on 16 GB";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), ExitCode::deck_error);
    EXPECT_NE(std::string(e.what()).find("no grid of 8 ranks trains this deck"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace nanotron::simulation
