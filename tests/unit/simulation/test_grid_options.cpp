// timeout: 300
// The lower bound by which a search of grids leaves candidates out is one, whatever is trained, in whatever type.

#include "simulation/grid_options.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "nanotron/base/error.hpp"
#include "nanotron/simulation/grid_search.hpp"
#include "nanotron/simulation/step_prediction.hpp"
#include "nanotron/trainer/start/deck_features.hpp"
#include "simulation/expert_options.hpp"
#include "support/small_deck.hpp"
#include "support/test_folder.hpp"

namespace nanotron::simulation {
namespace {

// More states than activations.
const std::string deck_text =
    "&run steps = 1 /\n"
    "&model hidden_size = 512, num_hidden_layers = 4, num_attention_heads = 8, intermediate_size = 1024, "
    "vocab_size = 4096 /\n"
    "&data path = 'none', sequence_length = 64, global_batch_size = 4 /\n";

deck::Config config_of(test::Settings set, int ranks) {
  deck::Config config = trainer::read_deck_text(deck_text, "deck", set, nullptr, ranks);
  trainer::resolve(config, ranks);
  return config;
}

std::optional<deck::Config> config_if_legal(const test::Settings& set, int ranks) {
  try {
    return config_of(set, ranks);
  } catch (const Error&) {
    return std::nullopt;
  }
}

struct Trained {
  const char* name;
  test::Settings set;
  double tight;  // the bound is at least this part of what one rank needs
};

class MemoryOfGrids : public testing::TestWithParam<Trained> {};

TEST_P(MemoryOfGrids, IsAtLeastTheBound) {
  const std::string path = (test::test_folder() / "../input/machines/h100.nml").string();
  const deck::Machine machine = deck::read_machine(path, deck::read_deck_file(path));
  const deck::Config base = config_of(GetParam().set, 1);
  const LeastMemory least(base);
  for (const int ranks : {1, 4}) {
    int legal = 0;
    for (const GridOptions& o : grid_options(base, ranks, machine)) {
      test::Settings set = GetParam().set;
      std::ranges::copy(o.overrides(), std::back_inserter(set));
      const auto config = config_if_legal(set, ranks);
      if (!config) continue;
      const double needed = memory_bytes(*config, machine, std::numeric_limits<double>::infinity());
      EXPECT_LE(least.of(o), needed) << testing::PrintToString(set);
      const bool has_all = o.recompute == deck::Recompute::none && o.states == deck::StateMemory::device;
      if (ranks == 1 && o.micro_batch == 1 && has_all) {
        EXPECT_GE(least.of(o), GetParam().tight * needed) << testing::PrintToString(set);
      }
      ++legal;
    }
    EXPECT_GE(legal, ranks) << ranks;
  }
}

INSTANTIATE_TEST_SUITE_P(
    GridOptions, MemoryOfGrids,
    testing::Values(
        Trained{"fp32", {"precision.compute=fp32"}, 0.7}, Trained{"bf16", {"precision.compute=bf16"}, 0.7},
        Trained{"fp8", {"precision.compute=fp8"}, 0.5},
        Trained{"bf16_moments", {"precision.compute=bf16", "precision.moments=bf16"}, 0.7},
        Trained{"lion", {"precision.compute=bf16", "optimizer.name=lion"}, 0.7},
        Trained{"ademamix", {"precision.compute=bf16", "optimizer.name=ademamix"}, 0.7},
        Trained{"muon", {"precision.compute=bf16", "optimizer.name=muon"}, 0.5},
        Trained{"soap", {"precision.compute=bf16", "optimizer.name=soap"}, 0.3},
        Trained{"adapters", {"precision.compute=bf16", "lora.rank=4", "lora.base=initial"}, 0.3},
        Trained{"experts", {"precision.compute=bf16", "moe.num_experts=4", "moe.moe_intermediate_size=256"}, 0.5}),
    [](const auto& trained) { return std::string(trained.param.name); });

// A search tries them where ranks of experts are on several nodes. Four nodes of two ranks, 16 experts of each token:
// a node receives four of its rows by rank, one by node.
TEST(GridSearch, SendsRowsOfExpertsByNodeWhereThatIsFaster) {
  const std::string path = (test::test_folder() / "../input/machines/h100.nml").string();
  deck::Machine machine = deck::read_machine(path, deck::read_deck_file(path));
  machine.node.ranks = 2;
  machine.network.rails = 1;
  const std::string text =
      "&run steps = 1 /\n"
      "&model hidden_size = 2048, num_hidden_layers = 2, num_attention_heads = 8, intermediate_size = 256, "
      "vocab_size = 4096 /\n"
      "&moe num_experts = 64, num_experts_per_tok = 16, moe_intermediate_size = 256 /\n"
      "&precision compute = 'bf16' /\n"
      "&data path = 'none', sequence_length = 2048, global_batch_size = 8 /\n";
  const SearchResult result =
      search_grids(text, "deck", {}, 8, machine, {.best = 400, .examined = 400, .seconds = 3600.0});
  int by_node = 0;
  for (const GridCandidate& c : result.best) {
    if (c.config.parallel.ep_messages != deck::ExpertMessages::by_node) continue;
    ++by_node;
    EXPECT_GT(c.config.parallel.ep_nodes, 1);
    deck::Config by_rank = c.config;
    by_rank.parallel.ep_messages = deck::ExpertMessages::by_rank;
    by_rank.parallel.ep_nodes = 0;
    EXPECT_GT(predict_step(by_rank, machine).seconds, c.prediction.seconds);
    EXPECT_TRUE(std::ranges::find(c.overrides, "parallel.ep_messages=by_node") != c.overrides.end());
  }
  EXPECT_GT(by_node, 0) << describe(result, machine);
}

// Attention over two tensor-parallel ranks of four: experts of half the width need all tokens on both, whole ones half
// of them.
TEST(GridSearch, KeepsExpertsWholeOnTensorParallelRanksWhereThatIsFaster) {
  const std::string path = (test::test_folder() / "../input/machines/h100.nml").string();
  const deck::Machine machine = deck::read_machine(path, deck::read_deck_file(path));
  const std::string text =
      "&run steps = 1 /\n"
      "&model hidden_size = 2048, num_hidden_layers = 2, num_attention_heads = 8, intermediate_size = 256, "
      "vocab_size = 4096 /\n"
      "&moe num_experts = 8, num_experts_per_tok = 2, moe_intermediate_size = 512, receive_factor = 1.5 /\n"
      "&parallel ep = 2, dp = 2, ep_overlap = .true. /\n"
      "&precision compute = 'bf16' /\n"
      "&data path = 'none', sequence_length = 4096, global_batch_size = 4, micro_batch_size = 2 /\n";
  const SearchResult result =
      search_grids(text, "deck", {}, 4, machine, {.best = 400, .examined = 400, .seconds = 3600.0});
  int whole = 0, faster = 0;
  for (const GridCandidate& c : result.best) {
    if (c.config.parallel.expert_tp != 1) continue;
    ++whole;
    EXPECT_EQ(c.config.parallel.ep % c.config.parallel.tp, 0);
    EXPECT_TRUE(std::ranges::find(c.overrides, "parallel.expert_tp=1") != c.overrides.end());
    EXPECT_EQ(ep_text(c.config.parallel), std::to_string(c.config.parallel.ep) + "t");
    deck::Config sharded = c.config;
    sharded.parallel.expert_tp = 0;
    sharded.parallel.ep /= sharded.parallel.tp;
    faster += predict_step(sharded, machine).seconds > c.prediction.seconds ? 1 : 0;
  }
  EXPECT_GT(whole, 0) << describe(result, machine);
  EXPECT_GT(faster, 0) << describe(result, machine);
  EXPECT_NE(describe(result, machine).find("of the first:\n  --set parallel.dp="), std::string::npos);
}

}  // namespace
}  // namespace nanotron::simulation
