// ranks: 1
// The same weights and tokens as PyTorch: 20 steps of AdamW or Muon, tests/golden/make_golden.py; as transformers' own
// classes, make_family_golden.py.

#include <gtest/gtest.h>

#include "support/differences.hpp"
#include "support/golden.hpp"
#include "support/test_folder.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

struct Case {
  std::string name;
  ScalarType type;
  double loss_tolerance;   // relative
  double state_tolerance;  // of sums and norms of the end state, relative to the norm
};

class AgainstPytorch : public testing::TestWithParam<Case> {};

double l2(const std::vector<double>& v) { return std::sqrt(std::inner_product(v.begin(), v.end(), v.begin(), 0.0)); }

// golden: {name: {"sum": s, "l2": n}}
void expect_state(const test::Tensors& ours, const nlohmann::json& golden, double tolerance,
                  const std::set<std::string>& but = {}) {
  ASSERT_EQ(ours.size(), golden.size());
  for (const auto& [name, tensor] : ours) {
    if (but.contains(name)) continue;
    const double norm = golden.at(name).at("l2");
    const double sum = golden.at(name).at("sum");
    const double root = std::sqrt(static_cast<double>(tensor.size()));
    EXPECT_NEAR(l2(tensor), norm, tolerance * norm) << name;
    EXPECT_NEAR(std::accumulate(tensor.begin(), tensor.end(), 0.0), sum, tolerance * norm * root) << name;
  }
}

void expect_losses(const test::Numbers& ours, const nlohmann::json& golden, const Case& c) {
  const std::vector<double> losses = golden.at("losses");
  const std::vector<double> norms = golden.at("grad_norms");
  ASSERT_EQ(losses.size(), 20u);
  ASSERT_EQ(ours.losses.size(), losses.size());
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(ours.losses[i], losses[i], c.loss_tolerance * losses[i]) << "step " << i;
    EXPECT_NEAR(ours.grad_norms[i], norms[i], 10 * c.loss_tolerance * norms[i]) << "step " << i;
  }
  std::printf("%s %s: worst relative difference of a loss %.2e\n", c.name.c_str(), name_of(c.type),
              test::largest_relative_difference(ours.losses, losses));
  EXPECT_LT(losses.back(), 0.99 * losses.front()) << "a golden that learns nothing proves nothing";
}

// Of a mixture of experts, the router's own losses too.
void expect_routers(const test::Numbers& ours, const nlohmann::json& golden, const Case& c) {
  const std::vector<double> balance = golden.at("load_balance"), z = golden.at("router_z");
  for (std::size_t i = 0; i < balance.size(); ++i) {
    EXPECT_NEAR(ours.routers[i].load_balance, balance[i], c.loss_tolerance * balance[i]) << "step " << i;
    EXPECT_NEAR(ours.routers[i].z, z[i], c.loss_tolerance * z[i]) << "step " << i;
    EXPECT_EQ(ours.routers[i].dropped_share, 0.0);
    EXPECT_GT(ours.routers[i].busiest_share, 0.0);
  }
}

TEST_P(AgainstPytorch, TwentyStepsAgree) {
  const Case& c = GetParam();
  deck::Config config = test::golden_config(c.name);
  config.precision.compute = c.type;
  const test::Numbers ours = test::run_training(config, test::world(), 20);
  const nlohmann::json golden = test::golden_numbers(c.name).at(name_of(c.type));
  expect_losses(ours, golden, c);
  if (golden.contains("router_z")) expect_routers(ours, golden, c);
  if (golden.contains("later_losses")) {
    const std::vector<double> later = golden.at("later_losses");
    EXPECT_LT(test::largest_relative_difference(ours.later_losses, later), c.loss_tolerance);
  }
  std::set<std::string> arbitrary = test::without_gradient(c.name);
  // Softmax does not see a bias on elements of keys that are not rotated: their gradient is rounding, which AdamW
  // enlarges.
  if (c.type == ScalarType::fp32 && config.model.partial_rotary_factor < 1.0)
    arbitrary.insert("model/layers/self_attn/k_proj/bias");
  expect_state(ours.parameters, golden.at("parameters"), c.state_tolerance, arbitrary);
  expect_state(ours.exp_avg, golden.at("exp_avg"), c.state_tolerance, arbitrary);
  expect_state(ours.exp_avg_sq, golden.at("exp_avg_sq"), c.state_tolerance, arbitrary);
}

// After one step exp_avg is (1 - beta1) times the clipped gradient.
TEST(AgainstPytorchsGradient, OfLaterTokensAgrees) {
  for (const char* name : {"later_tokens", "later_tokens_moe"}) {
    SCOPED_TRACE(name);
    const deck::Config config = test::golden_config(name);
    const test::Numbers ours = test::run_training(config, test::world(), 1);
    nlohmann::json golden = test::golden_numbers(name).at("fp64");
    const double norm = golden.at("grad_norms").at(0);
    const double factor =
        (1.0 - config.optimizer.beta1) * std::min(1.0, config.optimizer.clip_grad_norm / (norm + 1e-6));
    for (nlohmann::json& tensor : golden.at("first_gradients")) {
      for (nlohmann::json& value : tensor) value = factor * value.get<double>();
    }
    expect_state(ours.exp_avg, golden.at("first_gradients"), 1e-12);
    EXPECT_NEAR(ours.grad_norms.front(), norm, 1e-12 * norm);
  }
}

TEST(AgainstPytorchsMuon, TwentyStepsAgree) {
  std::ifstream file(test::test_folder() / "golden" / "muon.json");
  const nlohmann::json all = nlohmann::json::parse(file).at("fp64");
  for (const char* name : {"llama", "qwen2", "qwen3"}) {
    SCOPED_TRACE(name);
    const Case c{name, ScalarType::fp64, 1e-10, 1e-9};
    deck::Config config = test::golden_config(name);
    config.optimizer.name = "muon";
    const test::Numbers ours = test::run_training(config, test::world(), 20);
    const nlohmann::json& golden = all.at(name);
    expect_losses(ours, golden, c);
    expect_state(ours.parameters, golden.at("parameters"), c.state_tolerance);
    expect_state(ours.momentum, golden.at("momentum"), c.state_tolerance);
  }
}

// In fp64 and fp32.
std::vector<Case> cases_of(const std::vector<std::string>& names) {
  std::vector<Case> cases;
  for (const std::string& name : names) {
    cases.push_back({name, ScalarType::fp64, 1e-10, 1e-9});
    cases.push_back({name, ScalarType::fp32, 1e-5, 1e-3});
  }
  return cases;
}

std::string name_of_case(const testing::TestParamInfo<Case>& info) {
  return info.param.name + "_" + name_of(info.param.type);
}

INSTANTIATE_TEST_SUITE_P(Models, AgainstPytorch,
                         testing::ValuesIn(cases_of({"llama", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe"})),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(LaterTokens, AgainstPytorch,
                         testing::Values(Case{"later_tokens", ScalarType::fp64, 1e-12, 1e-10},
                                         Case{"later_tokens", ScalarType::fp32, 1e-5, 1e-3},
                                         Case{"later_tokens_moe", ScalarType::fp64, 1e-12, 1e-10},
                                         Case{"later_tokens_moe", ScalarType::fp32, 1e-5, 1e-3}),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Families, AgainstPytorch, testing::ValuesIn(cases_of(test::golden_families())), name_of_case);

}  // namespace
}  // namespace nanotron
