// ranks: 1
// What routers, shared experts, biases of experts and dense layers among them ask of a deck.
#include <gtest/gtest.h>

#include "nanotron/trainer/start/deck_features.hpp"
#include "support/run_decks.hpp"

namespace nanotron::trainer {
namespace {

using test::decks;

TEST(RoutingFeatures, RefuseWhatDoesNotFit) {
  const std::string experts = "moe.num_experts=6";
  decks.expect_refused({"model.mlp_bias=t", experts, "moe.n_shared_experts=1"}, "no shared experts");
  EXPECT_EQ(decks.message(test::small_deck, {"model.mlp_bias=t", experts, "precision.reproducible=layout"}), "");
  decks.expect_refused({"moe.n_group=4", experts}, "n_group a divisor of 6");
  decks.expect_refused({"moe.topk_group=2", experts}, "at most 1");
  decks.expect_refused({"moe.n_group=3", "moe.num_experts_per_tok=3", experts}, "more groups");
  decks.expect_refused({"moe.n_shared_experts=1", "moe.shared_expert_intermediate_size=8", experts}, "one of the two");
  decks.expect_refused({"moe.router_score=sigmoid", "moe.router_z_loss_coef=1", experts}, "router_score = 'softmax'");
  decks.expect_refused({"moe.expert_layers=none", experts}, "no layer has experts");
  decks.expect_refused({"moe.expert_layers=0-x", experts}, "a pattern");
  decks.expect_refused({"moe.expert_layers=99", experts}, "counted from 0");
  decks.expect_refused({"moe.expert_layers=!0", "precision.compute=fp8", experts}, "or expert_layers = 'all'");
  decks.expect_refused({"moe.expert_layers=!0"}, "the model is dense");
}

TEST(RoutingFeatures, AllowTheModelsThatHaveThem) {
  const test::Settings deepseek{"moe.num_experts=6",
                                "moe.router_score=sigmoid",
                                "moe.n_group=3",
                                "moe.topk_group=2",
                                "moe.n_shared_experts=2",
                                "moe.expert_layers=!0",
                                "moe.router_bias_update_rate=0.001"};
  EXPECT_EQ(decks.message(test::small_deck, deepseek), "");
  EXPECT_EQ(decks.message(test::small_deck, {"moe.num_experts=6", "moe.router_bias=t", "model.mlp_bias=t"}), "");
}

}  // namespace
}  // namespace nanotron::trainer
