// ranks: 1
// What keys of the messages between ranks with experts ask of a deck.
#include <gtest/gtest.h>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/message_nodes.hpp"
#include "nanotron/trainer/start/deck_features.hpp"
#include "support/run_decks.hpp"

namespace nanotron::trainer {
namespace {

using test::decks;
using test::small_deck;

const std::string experts = small_deck + "&moe num_experts = 4 /\n&parallel dp = 4, ep = 2 /\n";

void expect_refused(test::Settings settings, const std::string& words) {
  settings.insert(settings.begin(), "data.global_batch_size=16");
  const std::string text = decks.message(experts, settings);
  EXPECT_NE(text.find(words), std::string::npos) << text;
}

TEST(EpChecks, HalvesOfAMicroBatch) {
  const std::string overlap = "parallel.ep_overlap=t", two = "data.micro_batch_size=2",
                    batch = "data.global_batch_size=16";
  EXPECT_EQ(decks.message(experts, {batch, overlap, two}), "");
  EXPECT_EQ(decks.message(experts, {batch, overlap, "data.micro_batch_size=4", "parallel.zero_stage=3"}), "");
  expect_refused({overlap, "data.micro_batch_size=1"}, "two halves, but micro_batch_size = 1");
  expect_refused({overlap, two, "parallel.ep=1"}, "ep = 1 has none");
  expect_refused({overlap, two, "parallel.offload_layers=1"}, "offload_layers");
  expect_refused({overlap, two, "parallel.zero_stage=2", "model.tie_word_embeddings=t"}, "zero_stage at most 1");
  EXPECT_EQ(decks.message(experts, {batch, overlap, two, "parallel.zero_stage=1", "model.tie_word_embeddings=t"}), "");
  EXPECT_EQ(decks.message(experts, {batch, overlap, "precision.reproducible=layout"}), "");
  const std::string odd =
      decks.message(experts, {"data.global_batch_size=4", overlap, "precision.reproducible=layout"});
  EXPECT_NE(odd.find("sequences in pairs"), std::string::npos) << odd;
  expect_refused({overlap, "precision.reproducible=layout", "data.rampup_batch_size=4", "data.rampup_increment=4",
                  "data.rampup_samples=100"},
                 "rampup_batch_size gives each of dp = 4 ranks 1");
}

TEST(EpChecks, FormOfRows) {
  EXPECT_EQ(decks.message(experts, {"parallel.ep_row_type=fp8"}), "");
  expect_refused({"parallel.ep_row_type=bf16", "parallel.ep=1"}, "ep = 1 has none");
  expect_refused({"parallel.ep_row_type=fp8", "precision.reproducible=layout"}, "rounded where they travel");
  expect_refused({"parallel.ep_row_type=fp4"}, "ep_row_type");
}

TEST(EpChecks, MessagesByNode) {
  const std::string by_node = "parallel.ep_messages=by_node";
  EXPECT_EQ(decks.message(experts, {by_node}), "");
  EXPECT_EQ(decks.message(experts, {by_node, "parallel.ep_nodes=2"}), "");
  expect_refused({by_node, "parallel.ep=1"}, "ep = 1 has none");
  expect_refused({by_node, "parallel.ep_nodes=3"}, "not a multiple of ep_nodes = 3");
  expect_refused({"parallel.ep_nodes=2"}, "ep_messages = 'by_rank'");
  deck::Config in_order = decks.read(experts.substr(small_deck.size()), {by_node, "precision.reproducible=layout"});
  decks.resolve(in_order, 4);
  EXPECT_EQ(in_order.parallel.ep_messages, deck::ExpertMessages::by_rank);
}

TEST(EpChecks, RecomputedDispatch) {
  const std::string again = "parallel.recompute_dispatch=t";
  EXPECT_EQ(decks.message(experts, {again}), "");
  EXPECT_EQ(decks.message(experts, {again, "parallel.recompute=selective"}), "");
  expect_refused({again, "parallel.ep=1"}, "ep = 1 has none");
  const std::string full = "parallel.recompute=full";
  expect_refused({again, full}, "not computed again as a whole");
  expect_refused({again, full, "parallel.recompute_layers=0-99"}, "layer");
  EXPECT_EQ(decks.message(experts, {again, full, "parallel.recompute_layers=0"}), "");
}

// The hosts of 8 ranks in groups of 4.
TEST(EpChecks, NodesAreEqualAndOneAfterTheOther) {
  deck::Config config;
  config.parallel.dp = 8, config.parallel.ep = 4;
  EXPECT_EQ(comm::nodes_of_experts(config, {"a", "a", "b", "b", "c", "c", "d", "d"}), 2);
  EXPECT_EQ(comm::nodes_of_experts(config, {"a", "a", "a", "a", "b", "b", "b", "b"}), 1);
  EXPECT_EQ(comm::nodes_of_experts(config, {"a", "b", "c", "d", "e", "f", "g", "h"}), 4);
  for (const std::vector<std::string>& hosts : {std::vector<std::string>{"a", "a", "a", "b", "c", "c", "d", "d"},
                                                {"a", "b", "a", "b", "c", "c", "d", "d"},
                                                {"a", "a", "b", "b", "c", "c", "c", "c"},
                                                {"a", "b", "b", "a", "c", "d", "e", "f"}}) {
    try {
      comm::nodes_of_experts(config, hosts);
      ADD_FAILURE() << hosts[0] << hosts[1] << hosts[2] << hosts[3];
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("same number of neighbouring"), std::string::npos) << e.what();
    }
  }
}

// Experts that are whole on each of four tensor-parallel ranks.
TEST(EpChecks, ExpertsOverTensorParallelRanks) {
  const auto message = [](test::Settings settings) {
    settings.insert(settings.begin(), {"data.global_batch_size=16", "parallel.tp=4", "parallel.dp=2"});
    return decks.message(experts, settings);
  };
  const auto expect = [&](const test::Settings& settings, const std::string& words) {
    const std::string text = message(settings);
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  const std::string whole = "parallel.expert_tp=1";
  EXPECT_EQ(message({whole, "parallel.ep=4"}), "");
  EXPECT_EQ(message({"parallel.expert_tp=4", "parallel.ep=2"}), "");
  expect({"parallel.ep=4"}, "ep = 4 does not divide the data-parallel group of 2 ranks");
  expect({whole, "parallel.ep=8", "moe.num_experts=3"}, "num_experts = 3 is not a multiple of ep = 8");
  expect({whole, "parallel.ep=3", "moe.num_experts=6"}, "does not divide the 8 ranks of a stage (tp x cp x dp)");
  expect({"parallel.expert_tp=2"}, "over all tp = 4 tensor-parallel ranks or over none");
  const std::string in_order = "precision.reproducible=layout", shards = "precision.tensor_shards=4";
  EXPECT_EQ(message({whole, "parallel.ep=4", in_order, shards}), "");
  expect({whole, "parallel.ep=2", in_order, shards}, "ep = 2 neighbouring ranks do not receive all of them");
  EXPECT_EQ(message({whole, "parallel.ep=4", "parallel.ep_messages=by_node", "parallel.ep_nodes=2"}), "");
  expect({whole, "parallel.ep=4", "parallel.ep_messages=by_node", "parallel.ep_nodes=3"}, "multiple of ep_nodes = 3");
  expect({whole, "parallel.ep=1", "parallel.gradient_sum=adasum"}, "one of each tensor-parallel rank");
  expect({whole, "parallel.ep=1", "moe.num_experts=0"}, "expert_tp is given, but num_experts = 0");
  EXPECT_EQ(message({whole, "parallel.ep=8", "moe.num_experts=8", "parallel.zero_stage=1", "parallel.zero_size=1"}),
            "");
  const std::string of_ranks =
      decks.message(small_deck + "&moe num_experts = 12 /\n&parallel dp = 3, tp = 4, ep = 6, expert_tp = 1 /\n",
                    {"data.global_batch_size=12", "parallel.zero_stage=1", "parallel.zero_size=1"});
  EXPECT_NE(of_ranks.find("tp = 4 times zero_size = 1 ranks"), std::string::npos) << of_ranks;
}

}  // namespace
}  // namespace nanotron::trainer
