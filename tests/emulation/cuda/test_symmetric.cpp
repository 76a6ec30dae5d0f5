// ranks: 2 4
// timeout: 300
// Training with symmetric memory: every collective's operands lie where NCCL wants them, and the numbers are those of
// memory that is not registered.

#include <gtest/gtest.h>

#include "support/drawn_decks.hpp"
#include "support/sampling.hpp"

namespace nanotron {
namespace {

struct Case {
  const char* golden;
  std::vector<std::string> set;
};
const std::vector<Case> cases{
    {"llama", {"parallel.tp=2"}},
    {"llama", {"parallel.tp=2", "parallel.tp_mode=reduce_scatter", "parallel.zero_stage=1"}},
    {"qwen3", {"parallel.cp=2", "parallel.zero_stage=2"}},
    {"qwen3", {"parallel.cp=2", "parallel.cp_mode=all_to_all", "parallel.zero_stage=3"}},
    {"qwen2_moe", {"parallel.ep=2", "parallel.zero_stage=1", "moe.capacity_factor=1.2"}},
    {"mixtral", {"parallel.ep=2", "parallel.tp=2"}},
    {"mixtral", {"precision.compute=bf16", "run.expert_gemms=grouped", "parallel.zero_stage=2"}},
    {"llama", {"parallel.pp=2", "data.micro_batch_size=1", "model.tie_word_embeddings=t"}},
    {"llama", {"parallel.zero_stage=3", "parallel.zero_size=2", "precision.compute=bf16"}},
    {"llama", {"parallel.compression=powersgd"}},
    {"llama", {"parallel.compression=bf16"}},
    {"llama", {"parallel.gradient_sum=adasum"}},
    {"llama", {"optimizer.name=muon", "parallel.zero_stage=1"}},
    {"llama", {"precision.compute=fp8", "parallel.tp=2"}},
};

TEST(Symmetric, MemoryTrainsAsAnyOther) {
  int ranks = 0, tried = 0;
  MPI_Comm_size(test::world(), &ranks);
  const test::TokensOfDocuments tokens("symmetric", 20'000);
  for (const Case& c : test::sampled(cases, 7, test::world())) {
    SCOPED_TRACE(c.golden + testing::PrintToString(c.set));
    std::vector<std::string> set = c.set;
    for (const char* const more : {"checkpoint.resume=none", "model.vocab_size=132"}) set.emplace_back(more);
    set.push_back("data.path='" + tokens.path() + "'");
    std::optional<deck::Config> config = test::deck_if_legal(c.golden, set, ranks);
    EXPECT_TRUE(config || ranks != 4);
    if (!config) continue;
    const test::Numbers expected = test::run_training(*config, test::world(), 2);
    config->parallel.register_memory = deck::MemoryRegistration::symmetric;
    config->parallel.collective_engine = deck::CollectiveEngine::copies;
    const test::Numbers ours = test::run_training(*config, test::world(), 2);
    EXPECT_EQ(ours.losses, expected.losses);
    EXPECT_EQ(ours.parameters, expected.parameters);
    ++tried;
  }
  EXPECT_GE(tried, 4);
}

}  // namespace
}  // namespace nanotron
