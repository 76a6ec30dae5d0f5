// ranks: 1 2 4
// timeout: 300
// Which parameters decay: a step with weight decay and one without differ by learning_rate weight_decay p in those that
// decay, and by no bit in the others, with every optimizer and ZeRO stage.

#include <gtest/gtest.h>

#include "support/comparison.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

constexpr double decay = 0.5;

class WeightDecay : public testing::Test {
 protected:
  WeightDecay() { MPI_Comm_size(test::world(), &ranks_); }

  test::Tensors after_a_step(const std::string& patterns, double weight_decay, const std::string& name,
                             std::int64_t zero_stage) const {
    deck::Config c = test::golden_config("qwen2");
    c.checkpoint.resume = "none";
    c.optimizer.name = name;
    c.optimizer.weight_decay = weight_decay;
    c.optimizer.no_weight_decay = patterns;
    c.optimizer.learning_rate = 1e-2;
    c.schedule = {};
    c.model.initializer_range = 0.3;  // decay is well above rounding
    c.parallel.tp = ranks_ > 2 ? 2 : 1;
    c.parallel.dp = ranks_ / c.parallel.tp;
    c.parallel.zero_stage = zero_stage;
    return test::run_training(c, test::world(), 1).parameters;
  }

  void expect_decay(const std::string& patterns, bool (*decays)(const std::string& name, bool is_1d),
                    const std::string& optimizer, std::int64_t zero_stage) const {
    const test::Tensors with = after_a_step(patterns, decay, optimizer, zero_stage),
                        without = after_a_step(patterns, 0.0, optimizer, zero_stage);
    for (const auto& [name, tensor] : without) {
      const bool is_1d = name.ends_with("bias") || name.find("norm") != std::string::npos;
      if (name.ends_with("bias") && decays(name, is_1d)) continue;  // begins at 0
      EXPECT_EQ(with.at(name) != tensor, decays(name, is_1d)) << name << " with '" << patterns << "'";
    }
  }

  int ranks_ = 1;
};

TEST_F(WeightDecay, FollowsThePatterns) {
  for (const std::string optimizer : {"adamw", "muon"}) {
    for (const std::int64_t zero_stage : {0, 1, 3}) {
      if (zero_stage > 0 && ranks_ == 1) continue;
      expect_decay(
          "", [](const std::string&, bool is_1d) { return !is_1d; }, optimizer, zero_stage);
      expect_decay(
          "*embed_tokens* model.layers.mlp.*",
          [](const std::string& name, bool is_1d) {
            return !is_1d && name.find("embed_tokens") == std::string::npos && name.find("/mlp/") == std::string::npos;
          },
          optimizer, zero_stage);
      expect_decay(
          "!*, *embed_tokens*",  // OLMo 2
          [](const std::string& name, bool) { return name.find("embed_tokens") == std::string::npos; }, optimizer,
          zero_stage);
    }
  }
}

}  // namespace
}  // namespace nanotron
