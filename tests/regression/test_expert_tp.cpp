// ranks: 2 4 8
// timeout: 600
// labels: long
// Experts that are whole on each tensor-parallel rank (parallel%expert_tp = 1) follow the serial run on every grid:
// what they send is what was predicted, and a run resumes with experts that are sharded, and back.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/comparison.hpp"
#include "support/drawn_decks.hpp"
#include "support/expert_runs.hpp"
#include "support/sampling.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = std::min<std::int64_t>(6, test::compared_steps);
constexpr double tolerance = 1e-11;

struct Case {
  const char* golden;
  std::vector<std::string> set;
};

std::vector<std::string> cut(const std::string& keys) {
  std::istringstream words(keys);
  return {std::istream_iterator<std::string>(words), {}};
}

// On as many ranks as the grid has: 6 cases on 2, 16 on 4, 12 on 8. With messages by node the tokens of some go to both
// nodes, so that all bytes are known: where more experts are chosen than the other node lacks.
const std::vector<Case> cases{
    {"mixtral", cut("tp=2")},
    {"mixtral", cut("tp=2 ep=2 tp_mode=reduce_scatter")},
    {"qwen2_moe", cut("tp=2 ep=2 moe.capacity_factor=0.9")},
    {"qwen3_moe", cut("tp=2 ep=2 tp_mode=reduce_scatter tp_overlap_chunks=2 tp_gathered_inputs=keep recompute=full")},
    {"mixtral", cut("tp=2 ep=2 model.mlp_bias=t moe.router_bias=t tp_mode=reduce_scatter")},
    {"mixtral", cut("tp=2 dp=2 ep=4 tp_mode=reduce_scatter zero_stage=3")},
    {"mixtral", cut("tp=2 dp=2 ep=2 zero_stage=1")},
    {"mixtral", cut("tp=2 dp=2 zero_stage=2 moe.capacity_factor=0.8 data.micro_batch_size=2")},
    {"qwen3_moe", cut("tp=4 ep=2 zero_stage=1")},
    {"qwen3_moe", cut("tp=4 ep=4 tp_mode=reduce_scatter data.sequence_length=13")},  // slices of different lengths
    {"qwen2_moe", cut("tp=2 cp=2 ep=2 moe.capacity_factor=0.9")},
    {"mixtral", cut("tp=2 cp=2 ep=4 cp_mode=all_to_all recompute=selective model.mlp_bias=t zero_stage=2")},
    {"qwen3_moe", cut("tp=2 pp=2 ep=2 pp_schedule=zero_bubble model.num_hidden_layers=4")},
    {"mixtral", cut("tp=2 pp=2 ep=2 pp_schedule=gpipe offload_layers=1 tp_mode=reduce_scatter")},
    {"qwen3_moe", cut("tp=2 dp=2 ep=4 ep_overlap=t data.micro_batch_size=2 tp_mode=reduce_scatter")},
    {"mixtral", cut("tp=2 dp=2 ep=4 order=dp-tp-cp-pp")},
    {"mixtral", cut("tp=2 ep=2 ep_messages=by_node ep_nodes=2 moe.num_experts_per_tok=3 tp_mode=reduce_scatter")},
    {"mixtral", cut("tp=2 dp=2 ep=4 ep_messages=by_node ep_nodes=2 moe.num_experts_per_tok=3 zero_stage=1")},
    {"qwen2_moe", cut("tp=2 cp=2 ep=2 ep_messages=by_node ep_nodes=2 moe.capacity_factor=0.9 model.mlp_bias=t "
                      "moe.shared_expert_intermediate_size=0")},
    {"qwen3_moe", cut("tp=4 ep=4 ep_messages=by_node ep_nodes=2 data.sequence_length=13 recompute_dispatch=t "
                      "tp_mode=reduce_scatter")},
    {"qwen3_moe", cut("tp=2 pp=2 ep=2 ep_messages=by_node ep_nodes=2 ep_overlap=t data.micro_batch_size=2 "
                      "pp_schedule=zero_bubble model.num_hidden_layers=4")},
    {"qwen3_moe", cut("tp=2 dp=2 ep=2 optimizer.name=muon zero_stage=1")},
    {"qwen3_moe", cut("tp=2 dp=4 ep=8 zero_stage=3")},
    {"qwen3_moe", cut("tp=2 dp=4 ep=2 zero_stage=2 zero_size=2")},
    {"qwen3_moe", cut("tp=2 dp=4 ep=4 zero_stage=1 zero_size=2")},
    {"qwen3_moe", cut("tp=2 dp=4 ep=8 zero_stage=3 zero_size=2 tp_mode=reduce_scatter")},
    {"qwen3_moe", cut("tp=4 dp=2 ep=8")},
    {"qwen3_moe", cut("tp=4 cp=2 ep=2 tp_mode=reduce_scatter moe.capacity_factor=1")},
    {"qwen2_moe", cut("tp=2 cp=2 dp=2 ep=2 zero_stage=3 moe.capacity_factor=0.8")},
    {"qwen3_moe", cut("tp=2 pp=2 dp=2 ep=4 zero_stage=1 pp_schedule=interleaved_1f1b model.num_hidden_layers=4")},
    {"qwen3_moe", cut("tp=2 dp=4 ep=8 ep_messages=by_node ep_nodes=2 moe.num_experts_per_tok=5 zero_stage=3")},
    {"qwen3_moe", cut("tp=2 cp=2 dp=2 ep=8 ep_messages=by_node ep_nodes=4 zero_stage=2 tp_mode=reduce_scatter")},
    {"qwen3_moe", cut("tp=4 dp=2 ep=4 ep_messages=by_node ep_nodes=2 moe.num_experts_per_tok=5 "
                      "data.sequence_length=13")},
    {"mixtral", cut("tp=2 cp=2 dp=2 ep=4 ep_messages=by_node ep_nodes=2 data.sequence_length=13 "
                    "moe.num_experts_per_tok=3 recompute=full")},
};

class ExpertTp : public testing::Test {
 protected:
  ExpertTp() { MPI_Comm_size(test::world(), &ranks_); }

  // Nothing where the grid has other ranks.
  std::optional<deck::Config> config_of(const Case& c, const std::string& expert_tp = "1") const {
    std::vector<std::string> set{"checkpoint.resume=none", "parallel.expert_tp=" + expert_tp, "parallel.dp=1",
                                 "data.path='" + test::golden_config(c.golden).data.path + "'"};
    for (const std::string& key : c.set) {
      set.push_back(key.find('.') < key.find('=') ? key : "parallel." + key);
    }
    return test::deck_if_legal(c.golden, set, ranks_);
  }

  int ranks_ = 1;
};

TEST_F(ExpertTp, FollowsTheSerialRun) {
  std::vector<std::pair<const Case*, deck::Config>> all;
  for (const Case& c : cases) {
    if (const auto config = config_of(c)) all.emplace_back(&c, *config);
  }
  EXPECT_EQ(all.size(), ranks_ == 2 ? 6u : ranks_ == 4 ? 16u : 12u);
  double worst = 0.0;
  for (const auto& [c, config] : test::sampled(all, 5, test::world())) {
    SCOPED_TRACE(c->golden + testing::PrintToString(c->set));
    const test::Numbers ours = test::run_training(config, test::world(), steps), theirs = test::serial(config, steps);
    const double difference = test::worst_loss_difference(ours, theirs);
    EXPECT_LT(difference, tolerance);
    worst = test::larger(worst, difference);
    EXPECT_EQ(ours.hashes, theirs.hashes);
    ASSERT_EQ(ours.routers.size(), theirs.routers.size());
    for (std::size_t i = 0; i < theirs.routers.size(); ++i) {
      EXPECT_NEAR(ours.routers[i].load_balance, theirs.routers[i].load_balance, 1e-11);
      EXPECT_EQ(ours.routers[i].dropped_share, theirs.routers[i].dropped_share);
      EXPECT_EQ(ours.routers[i].busiest_share, theirs.routers[i].busiest_share);
    }
    test::expect_same_state(ours.parameters, theirs.parameters);
    test::expect_same_state(ours.exp_avg, theirs.exp_avg);
    test::expect_same_state(ours.exp_avg_sq, theirs.exp_avg_sq);
    test::expect_predicted_traffic(config, ours);
  }
  std::printf("of %zu runs: worst relative difference %.1e\n", all.size(), worst);
}

TEST_F(ExpertTp, TheDegreeOfTpIsTheDefault) {
  const Case c{"mixtral", cut("tp=2 dp=" + std::to_string(ranks_ / 2))};
  const auto by_default = config_of(c, "0"), named = config_of(c, "2");
  ASSERT_TRUE(by_default && named);
  const test::Numbers ours = test::run_training(*named, test::world(), 2),
                      theirs = test::run_training(*by_default, test::world(), 2);
  EXPECT_EQ(ours.losses, theirs.losses);
  EXPECT_EQ(ours.parameters, theirs.parameters);
}

// Parameters and moments are bitwise those that were saved: the resumed run at once saves the same.
TEST_F(ExpertTp, ResumesWithShardedExpertsAndBack) {
  if (ranks_ == 8) return;  // files take their time
  const std::string dp = std::to_string(ranks_ / 2), ep = std::to_string(ranks_);
  const auto whole = config_of({"mixtral", cut("tp=2 dp=" + dp + " ep=" + ep + " model.mlp_bias=t zero_stage=1")});
  const auto sharded = config_of({"mixtral", cut("tp=2 dp=" + dp + " ep=" + dp + " model.mlp_bias=t")}, "0");
  ASSERT_TRUE(whole && sharded);
  const test::TemporaryFolder folder(test::world(), "expert_tp");
  const test::Numbers reference = test::serial(*whole, 8);
  for (const bool begins_whole : {true, false}) {
    SCOPED_TRACE(begins_whole);
    deck::Config first = begins_whole ? *whole : *sharded, second = begins_whole ? *sharded : *whole;
    first.checkpoint.directory = second.checkpoint.directory = (folder.path() / (begins_whole ? "w" : "s")).string();
    const test::Numbers saved = test::run_training(first, test::world(), 4, true);
    second.checkpoint.resume = "auto";
    const test::Numbers read = test::run_training(second, test::world(), 4);
    EXPECT_EQ(read.parameters, saved.parameters);
    EXPECT_EQ(read.exp_avg, saved.exp_avg);
    EXPECT_EQ(read.exp_avg_sq, saved.exp_avg_sq);
    const test::Numbers resumed = test::run_training(second, test::world(), 8);
    ASSERT_EQ(resumed.losses.size(), 4u);
    for (std::size_t s = 0; s < 4; ++s)
      EXPECT_NEAR(resumed.losses[s], reference.losses[s + 4], tolerance * reference.losses[s + 4]);
    test::expect_same_state(resumed.parameters, reference.parameters);
    test::expect_same_state(resumed.exp_avg, reference.exp_avg);
  }
}

}  // namespace
}  // namespace nanotron
