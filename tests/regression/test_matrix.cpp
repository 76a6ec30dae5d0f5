// ranks: 2 3 4 6 8
// timeout: 600
// Any two options together: grids and options are drawn so that every pair of values that the deck allows on that many
// ranks meets in some run (pairwise cover), and each run follows the serial one. CI takes a part of the runs.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <sstream>

#include "nanotron/deck/later_tokens.hpp"
#include "support/comparison.hpp"
#include "support/drawn_decks.hpp"
#include "support/orders.hpp"
#include "support/sampling.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = test::compared_steps;
constexpr double tolerance = 1e-11;
constexpr int candidates = 6000;
constexpr std::size_t runs_in_ci = test::legal_orders > 1 ? 3 : 8;

// The values of all axes of one run, each an index into its list of choices. Of an axis without a group they are lists
// of keys.
struct Axis {
  const char* name;
  std::vector<std::string> values;
};
const std::vector<Axis> axes{
    {"parallel.tp", {"1", "2", "3", "4"}},
    {"parallel.pp", {"1", "2", "3", "4"}},
    {"parallel.cp", {"1", "2", "3", "4"}},
    {"parallel.ep", {"1", "2", "3", "4"}},
    {"parallel.zero_stage", {"0", "1", "2", "3"}},
    {"parallel.zero_size", {"0", "2"}},
    {"parallel.tp_mode", {"all_reduce", "reduce_scatter"}},
    {"parallel.tp_overlap_chunks", {"1", "2", "3"}},
    {"parallel.tp_gathered_inputs", {"gather_again", "keep"}},
    {"parallel.cp_mode", {"ring", "all_to_all"}},
    {"parallel.pp_schedule", {"gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"}},
    {"parallel.recompute", {"none", "selective", "full"}},
    {"parallel.recompute_layers", {"all", "2:1"}},
    {"data.micro_batch_size", {"1", "2"}},
    {"data.document_mask", {"none", "block_diagonal"}},
    {"data.sequences", {"stream", "documents"}},
    {"attention",
     {"", "model.qk_norm=t model.qk_norm_over=projection", "model.attention_sinks=t",
      "model.attention_sinks=t model.sliding_window=5 model.window_layers=1:1",
      "model.attn_logit_softcapping=2 model.attention_multiplier=0.4 model.sliding_window=7 model.window_layers=1:1",
      "model.position_embedding_type=alibi model.sliding_window=9", "model.position_embedding_type=none",
      "model.partial_rotary_factor=0.5 model.rope_interleaved=t model.rope_type=linear model.rope_factor=2",
      "model.rope_type=dynamic model.rope_factor=2 model.original_max_position_embeddings=8",
      "model.kv_lora_rank=10 model.q_lora_rank=12 model.qk_nope_head_dim=6 model.qk_rope_head_dim=4 model.v_head_dim=7 "
      "model.head_dim=0 model.num_key_value_heads=0 model.rope_interleaved=t",
      "model.kv_lora_rank=9 model.qk_nope_head_dim=5 model.qk_rope_head_dim=4 model.v_head_dim=9 model.head_dim=0 "
      "model.num_key_value_heads=0 model.qkv_bias=f model.qk_norm=f",
      "model.sliding_window=5 model.window_layers=2:1 model.rope_layers=!4-5 model.rope_local_theta=50"}},
    // Norms of small outputs, and AdamW of small gradients, amplify rounding: weights and eps are larger.
    {"block",
     {"", "model.norm_placement=post model.hidden_act=xielu model.initializer_range=0.1 optimizer.eps=1e-3",
      "model.norm_placement=sandwich model.norm_weight=one_plus model.hidden_act=geglu_tanh "
      "model.initializer_range=0.1 optimizer.eps=1e-3",
      "model.parallel_residual=two_norms model.normalization=layer_norm model.rms_norm_eps=1e-5 model.hidden_act=relu2",
      "model.parallel_residual=one_norm model.normalization=layer_norm model.rms_norm_eps=1e-5 model.norm_bias=f "
      "model.hidden_act=swiglu_clamped model.swiglu_limit=0.02",
      "model.norm_weight=none model.hidden_act=geglu", "model.residual_multiplier=0.3"}},
    {"dropout",
     {"", "model.attention_dropout=0.2", "model.hidden_dropout=0.1",
      "model.hidden_dropout=0.2 model.attention_dropout=0.1"}},
    {"routing",
     {"",
      "moe.router_score=sigmoid moe.n_group=2 moe.topk_group=1 moe.num_experts_per_tok=2 moe.n_shared_experts=1 "
      "moe.shared_expert_intermediate_size=0 moe.routed_scaling_factor=2 moe.router_bias=t "
      "moe.router_bias_update_rate=0.02 moe.router_z_loss_coef=0 moe.expert_layers=!0-1,7"}},
    {"ends",
     {"",
      "model.embedding_multiplier=3 model.embedding_norm=true model.logits_scaling=0.5 "
      "model.final_logit_softcapping=2 optimizer.z_loss_coefficient=0.02 optimizer.no_weight_decay=!*,*embed_tokens* "
      "optimizer.ema_decay=0.7"}},
    {"adapters",
     {"", "lora.rank=3 lora.base=initial", "lora.rank=2 lora.targets=q_proj,v_proj,down_proj lora.base=initial"}},
    // No update that divides by a small number, nor by sign: Lion is in test_optimizers.cpp.
    {"optimizer",
     {"", "optimizer.name=ademamix optimizer.beta3=0.99 optimizer.alpha_warmup_steps=5",
      "optimizer.name=schedule_free_adamw"}},
    {"pairs", {"", "preference.beta=0.4 data.sequences=pairs"}},
    {"later", {"", "model.num_nextn_predict_layers=1", "model.num_nextn_predict_layers=2"}},
    {"model", {"llama", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe"}},
};
using Choice = std::vector<std::size_t>;  // by axis
using Pair = std::array<std::size_t, 4>;  // axis, value, axis, value

std::string text(const Choice& choice) {
  std::string out;
  for (std::size_t a = 0; a < axes.size(); ++a) {
    const std::string name = axes[a].name;
    out += fmt::format("{}{} {}", a > 0 ? ", " : "", name.substr(name.find('.') + 1), axes[a].values[choice[a]]);
  }
  return out;
}

// An option of an axis of degree 1 does nothing.
bool is_at_work(const Choice& choice, const deck::Config& config, std::size_t axis) {
  const std::string name = axes[axis].name;
  const deck::ParallelConfig& p = config.parallel;
  if (name == "parallel.tp_mode") return p.tp > 1;
  if (name.starts_with("parallel.tp_")) return p.tp > 1 && p.tp_mode == deck::TpMode::reduce_scatter;
  if (name == "parallel.recompute_layers") return p.recompute != deck::Recompute::none;
  if (name == "parallel.cp_mode") return p.cp > 1;
  if (name == "data.sequences") return config.data.sequences != deck::SequenceKind::pairs;  // another axis
  if (name == "parallel.pp_schedule") return p.pp > 1;
  if (name == "parallel.zero_size") return p.zero_stage > 0;
  if (name == "parallel.zero_stage") return choice[axis] == 0 || p.dp * p.cp > 1;
  return true;
}

std::set<Pair> pairs_of(const Choice& choice, const deck::Config& config) {
  std::set<Pair> pairs;
  for (std::size_t a = 0; a < choice.size(); ++a) {
    if (!is_at_work(choice, config, a)) continue;
    for (std::size_t b = a + 1; b < choice.size(); ++b) {
      if (is_at_work(choice, config, b)) pairs.insert({a, choice[a], b, choice[b]});
    }
  }
  return pairs;
}

// What the values of a serial run depend on: those of the axes without a group.
std::vector<std::string> keys_of_model(const Choice& choice) {
  std::vector<std::string> values;
  for (std::size_t a = 0; a < axes.size(); ++a) {
    if (std::string(axes[a].name).find('.') == std::string::npos) values.push_back(axes[a].values[choice[a]]);
  }
  return values;
}

struct Trial {
  Choice choice;
  deck::Config config;
  std::set<Pair> pairs;
};

// Greedily, the run with the most pairs that have not met yet.
std::vector<Trial> cover(const std::vector<Trial>& legal) {
  std::set<Pair> open;
  for (const Trial& run : legal) open.insert(run.pairs.begin(), run.pairs.end());
  std::vector<Trial> chosen;
  while (!open.empty()) {
    const Trial* best = nullptr;
    std::ptrdiff_t most = 0;
    for (const Trial& run : legal) {
      const auto met = std::ranges::count_if(run.pairs, [&](const Pair& p) { return open.contains(p); });
      if (met > most) {
        most = met;
        best = &run;
      }
    }
    for (const Pair& pair : best->pairs) open.erase(pair);
    chosen.push_back(*best);
  }
  return chosen;
}

class Matrix : public testing::Test {
 protected:
  Matrix() : tokens_("matrix", 4000) {
    MPI_Comm_size(test::world(), &ranks_);
    MPI_Comm_rank(test::world(), &rank_);
  }

  // Nothing when the deck is refused.
  std::optional<deck::Config> config_of(const Choice& choice) const {
    std::vector<std::string> set{"model.num_hidden_layers=9", "checkpoint.resume=none", "checkpoint.at_end=false",
                                 "data.sequence_length=13",   "parallel.dp=0",          "data.path=" + tokens_.path()};
    for (std::size_t a = 0; a + 1 < axes.size(); ++a) {
      const std::string name = axes[a].name, &value = axes[a].values[choice[a]];
      if (name.find('.') != std::string::npos) {
        set.push_back(name + "=" + value);
      } else {
        if (name == "pairs" && !value.empty()) set.push_back("data.path=" + tokens_.path_of_pairs());
        std::istringstream keys(value);
        set.insert(set.end(), std::istream_iterator<std::string>(keys), {});
      }
    }
    return test::deck_if_legal(axes.back().values[choice.back()], set, ranks_);
  }

  std::vector<Trial> legal_trials() const {
    std::mt19937 random(2024);
    std::set<Choice> drawn;
    std::vector<Trial> legal;
    for (int i = 0; i < candidates; ++i) {
      Choice choice;
      for (const Axis& axis : axes) choice.push_back(random() % axis.values.size());
      const auto config = drawn.insert(choice).second ? config_of(choice) : std::nullopt;
      if (config) legal.push_back({choice, *config, pairs_of(choice, *config)});
    }
    return legal;
  }

  test::TokensOfDocuments tokens_;
  int ranks_ = 1, rank_ = 0;
};

TEST_F(Matrix, EveryPairOfOptionsFollowsTheSerialRun) {
  const std::vector<Trial> runs = test::sampled(cover(legal_trials()), runs_in_ci, test::world());
  std::map<std::tuple<std::vector<std::string>, deck::DocumentMask, deck::SequenceKind>, test::Numbers> references;
  double worst = 0.0;
  for (const auto& [choice, config, pairs] : runs) {
    SCOPED_TRACE(text(choice));
    // Each rank runs the serial run, and each run computes its own file of the reference model.
    deck::Config alone = config, together = config;
    if (config.preference.beta > 0.0) {
      alone.preference.reference = tokens_.new_path(rank_), together.preference.reference = tokens_.new_path(0);
    }
    test::Numbers& reference = references[{keys_of_model(choice), config.data.document_mask, config.data.sequences}];
    if (reference.losses.empty()) reference = test::serial(alone, steps);
    test::in_legal_orders([&] {
      const test::Numbers ours = test::run_training(together, test::world(), steps);
      EXPECT_LT(test::worst_loss_difference(ours, reference), tolerance);
      EXPECT_EQ(ours.hashes, reference.hashes);
      if (config.optimizer.z_loss_coefficient > 0.0) {
        EXPECT_LT(test::largest_relative_difference(ours.z_losses, reference.z_losses), tolerance);
      }
      if (deck::appended_layers(config.model) > 0) {
        EXPECT_LT(test::largest_relative_difference(ours.later_losses, reference.later_losses), tolerance);
      }
      EXPECT_EQ(ours.rewards_accuracy, reference.rewards_accuracy);
      EXPECT_EQ(ours.counted.tensor_parallel, ours.predicted.tensor_parallel);
      EXPECT_EQ(ours.counted.context_parallel, ours.predicted.context_parallel);
      EXPECT_EQ(ours.counted.data_parallel, ours.predicted.data_parallel);
      EXPECT_EQ(ours.counted.pipeline, ours.predicted.pipeline);
      std::uint64_t over_experts = ours.predicted.expert_parallel - ours.counted.expert_parallel;
      MPI_Allreduce(MPI_IN_PLACE, &over_experts, 1, MPI_UINT64_T, MPI_SUM, test::world());
      EXPECT_EQ(over_experts, 0U);  // mod 2^64: what comes back is other ranks'
      test::expect_same_state(ours.parameters, reference.parameters);
      if (!reference.ema.empty()) test::expect_same_state(ours.ema, reference.ema);
      for (const auto& [name, state] : reference.states) {
        if (!state.empty()) test::expect_same_state(ours.states.at(name), state);
      }
      worst = test::larger(worst, test::worst_loss_difference(ours, reference));
    });
    if (testing::Test::HasFailure()) break;
  }
  if (rank_ == 0) std::printf("%zu runs on %d ranks: worst relative difference %.1e\n", runs.size(), ranks_, worst);
}

}  // namespace
}  // namespace nanotron
