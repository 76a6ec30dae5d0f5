// ranks: 2 3 4 6 8
// timeout: 600
// Any two options together: grids and options are drawn so that every pair of values that the deck allows on that many
// ranks meets in some run (pairwise cover), and each run follows the serial one. CI takes a part of the runs. FP8 is
// not drawn: a code is the nearest of few, so that a sum in another order changes some, which no bar of rounding holds;
// test_fp8.cpp and test_fp8_experts.cpp compare losses.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <sstream>

#include "nanotron/deck/expert_ranks.hpp"
#include "nanotron/deck/later_tokens.hpp"
#include "support/comparison.hpp"
#include "support/drawn_decks.hpp"
#include "support/expert_runs.hpp"
#include "support/orders.hpp"
#include "support/sampling.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = test::compared_steps;
constexpr double tolerance = 1e-11;
constexpr int candidates = 400;
constexpr std::size_t runs_in_ci = test::legal_orders > 1 ? 3 : 8;

// The values of all axes of one run, each an index into its list of choices. Of an axis without a group they are lists
// of keys; other values may be followed by keys.
struct Axis {
  const char* name;
  std::vector<std::string> values;
};
const std::vector<Axis> axes{
    {"parallel.tp", {"1", "2", "3", "4"}},
    {"parallel.pp", {"1", "2", "3", "4"}},
    {"parallel.cp", {"1", "2", "3", "4"}},
    {"parallel.ep", {"1", "2", "3", "4"}},
    {"parallel.expert_tp", {"0", "1"}},
    {"parallel.ep_overlap", {"f", "t"}},
    {"parallel.ep_messages", {"by_rank", "by_node parallel.ep_nodes=2"}},
    {"parallel.zero_stage", {"0", "1", "2", "3"}},
    {"parallel.zero_size", {"0", "2"}},
    {"parallel.compression", {"none", "bf16"}},
    {"parallel.tp_mode", {"all_reduce", "reduce_scatter"}},
    {"parallel.tp_overlap_chunks", {"1", "2", "3"}},
    {"parallel.tp_gathered_inputs", {"gather_again", "keep"}},
    {"parallel.cp_mode", {"ring", "all_to_all"}},
    {"parallel.cp_all_to_all", {"1", "2"}},
    {"parallel.pp_schedule", {"gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"}},
    {"parallel.recompute", {"none", "selective", "full"}},
    {"parallel.recompute_layers", {"all", "2:1"}},
    {"parallel.recompute_dispatch", {"f", "t"}},
    {"parallel.offload_layers", {"0", "2"}},
    {"parallel.mlp_tile", {"0", "4"}},
    {"data.micro_batch_size", {"1", "2"}},
    {"data.document_mask", {"none", "block_diagonal"}},
    {"data.sequences", {"stream", "documents"}},
    {"data.length_buckets", {"f", "t"}},
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
      "model.sliding_window=5 model.window_layers=2:1 model.rope_layers=!4-5 model.rope_local_theta=50",
      "model.rope_type=yarn model.rope_factor=4 model.original_max_position_embeddings=8 model.rope_beta_fast=2 "
      "model.rope_truncate=f model.rope_attention_factor=1.2",
      "model.rope_type=longrope model.rope_factor=4 model.original_max_position_embeddings=8 "
      "model.partial_rotary_factor=0.25 model.rope_short_factor=1.5 model.rope_long_factor=2.5",
      "model.position_embedding_type=learned_absolute model.max_position_embeddings=13"}},
    // Norms of small outputs amplify rounding: weights are larger, steps smaller. So does AdamW of small gradients: eps
    // is in all runs.
    {"block",
     {"", "model.norm_placement=post model.hidden_act=xielu model.initializer_range=0.1 optimizer.learning_rate=1e-4",
      "model.norm_placement=sandwich model.norm_weight=one_plus model.hidden_act=geglu_tanh "
      "model.initializer_range=0.1",
      "model.parallel_residual=two_norms model.normalization=layer_norm model.rms_norm_eps=1e-5 model.hidden_act=relu2",
      "model.parallel_residual=one_norm model.normalization=layer_norm model.rms_norm_eps=1e-5 model.norm_bias=f "
      "model.hidden_act=swiglu_clamped model.swiglu_limit=0.02",
      "model.norm_weight=none model.hidden_act=geglu", "model.residual_multiplier=0.3",
      "model.hidden_act=relu model.qkv_bias=t model.o_proj_bias=t model.mlp_bias=t",
      "model.parallel_residual=one_norm model.normalization=layer_norm model.rms_norm_eps=1e-5 "
      "model.hidden_act=gelu_new model.qkv_bias=t model.o_proj_bias=t model.mlp_bias=t"}},
    {"dropout",
     {"", "model.attention_dropout=0.2", "model.hidden_dropout=0.1",
      "model.hidden_dropout=0.2 model.attention_dropout=0.1"}},
    {"routing",
     {"",
      "moe.router_score=sigmoid moe.n_group=2 moe.topk_group=1 moe.num_experts_per_tok=2 moe.n_shared_experts=1 "
      "moe.shared_expert_intermediate_size=0 moe.routed_scaling_factor=2 moe.router_bias=t "
      "moe.router_bias_update_rate=0.02 moe.router_z_loss_coef=0 moe.expert_layers=!0-1,7",
      "moe.router_score=sigmoid moe.norm_topk_prob=f moe.router_z_loss_coef=0 moe.expert_layers=2:1",
      "moe.router_bias=t moe.n_shared_experts=2 moe.shared_expert_intermediate_size=0 moe.expert_layers=!2:1",
      "moe.router_bias=t moe.shared_expert_intermediate_size=0 model.mlp_bias=t model.hidden_act=swiglu_clamped"}},
    {"ends",
     {"",
      "model.embedding_multiplier=3 model.embedding_norm=true model.logits_scaling=0.5 "
      "model.final_logit_softcapping=2 optimizer.z_loss_coefficient=0.02 optimizer.no_weight_decay=!*,*embed_tokens* "
      "optimizer.ema_decay=0.7",
      "model.lm_head_bias=t model.final_logit_softcapping=2 optimizer.z_loss_coefficient=0.02",
      "model.lm_head_bias=t model.tie_word_embeddings=t data.goldfish_k=3 data.goldfish_h=2"}},
    {"adapters",
     {"", "lora.rank=3 lora.base=initial", "lora.rank=2 lora.targets=q_proj,v_proj,down_proj lora.base=initial"}},
    // No update that divides by a small number, nor by sign, nor by eigenvectors: Lion and SOAP are in
    // test_optimizers.cpp.
    {"optimizer",
     {"", "optimizer.name=ademamix optimizer.beta3=0.99 optimizer.alpha_warmup_steps=5",
      "optimizer.name=schedule_free_adamw", "optimizer.name=ademamix optimizer.beta3=0.9 optimizer.qk_clip=0.01",
      "optimizer.qk_clip=0.005"}},
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

const std::string& value_of(const Choice& choice, std::string_view axis) {
  const auto found = std::ranges::find_if(axes, [&](const Axis& a) { return a.name == axis; });
  return found->values[choice[static_cast<std::size_t>(found - axes.begin())]];
}

// Whether a deck is worth being read: others would be refused for their degrees, or for experts in a dense model.
bool may_be_legal(const Choice& choice, int ranks) {
  const auto degree = [&](const char* axis) { return std::stoi(value_of(choice, axis)); };
  if (ranks % (degree("parallel.tp") * degree("parallel.pp") * degree("parallel.cp")) != 0) return false;
  const std::string& model = value_of(choice, "model");
  const bool is_dense = model.find("_moe") == std::string::npos && model != "mixtral";
  // A run that is followed where gradients are rounded has no tensor parallelism: there experts of ep / tp ranks have
  // the same gradients as whole ones of ep ranks, and other degrees have none to follow.
  if (degree("parallel.expert_tp") == 1 && value_of(choice, "parallel.compression") != "none" &&
      degree("parallel.ep") % degree("parallel.tp") != 0)
    return false;
  return !is_dense || (value_of(choice, "routing").empty() && degree("parallel.ep") == 1);
}

// An option of an axis of degree 1 does nothing.
bool is_at_work(const Choice& choice, const deck::Config& config, std::size_t axis) {
  const std::string name = axes[axis].name;
  const deck::ParallelConfig& p = config.parallel;
  if (name == "parallel.tp_mode" || name == "parallel.expert_tp") return p.tp > 1;
  if (name.starts_with("parallel.tp_")) return p.tp > 1 && p.tp_mode == deck::TpMode::reduce_scatter;
  if (name == "parallel.recompute_layers") return p.recompute != deck::Recompute::none;
  if (name.starts_with("parallel.cp_")) return p.cp > 1;
  if (name.starts_with("parallel.ep_")) return p.ep > 1;
  if (name == "data.sequences") return config.data.sequences != deck::SequenceKind::pairs;  // another axis
  if (name == "parallel.pp_schedule") return p.pp > 1;
  if (name == "parallel.zero_size") return p.zero_stage > 0;
  if (name == "parallel.compression") return p.dp * p.cp > 1;
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

// The stages of the run to follow. An embedding that two stages use has two addends, each rounded.
std::int64_t stages_of_reference(const deck::Config& config) {
  return deck::embeds_at_end(config.model) ? config.parallel.pp : 1;
}

int ranks_of_reference(const deck::Config& config) {
  const deck::ParallelConfig& p = config.parallel;
  return p.compression == deck::Compression::none ? 1 : static_cast<int>(p.dp * p.cp * stages_of_reference(config));
}

// What the values of the run to follow depend on: those of the axes without a group, and of a run that rounds gradients
// what their addends are.
std::vector<std::string> keys_of_reference(const Choice& choice, const deck::Config& config) {
  const deck::ParallelConfig& p = config.parallel;
  std::vector<std::string> values{
      fmt::format("{} {}", static_cast<int>(config.data.document_mask), static_cast<int>(config.data.sequences)) +
      (config.data.length_buckets ? " in buckets" : "")};
  if (p.compression != deck::Compression::none) {
    values.push_back(fmt::format("{} {} {} {} {} {} {} {} {}", p.dp, p.cp, p.ep / deck::tp_in_ep(p), p.ep_overlap,
                                 p.zero_stage, p.zero_size, config.data.micro_batch_size, stages_of_reference(config),
                                 static_cast<int>(p.pp_schedule)));
  }
  for (std::size_t a = 0; a < axes.size(); ++a) {
    if (std::string(axes[a].name).find('.') == std::string::npos) values.push_back(axes[a].values[choice[a]]);
  }
  return values;
}

// The run to follow: the serial one; where replicas round their gradients, the one of as many replicas without tensor
// parallelism, and without stages if it can be, computed by each group of so many ranks.
test::Numbers reference_of(const deck::Config& config, int rank) {
  if (config.parallel.compression == deck::Compression::none) return test::serial(config, steps);
  deck::Config replicas = config;
  replicas.parallel.ep /= deck::tp_in_ep(config.parallel);
  replicas.parallel.tp = 1;
  replicas.parallel.expert_tp = 0;
  replicas.parallel.ep_messages = deck::ExpertMessages::by_rank;
  replicas.parallel.ep_nodes = 0;
  replicas.parallel.recompute_dispatch = false;
  replicas.parallel.pp = stages_of_reference(config);
  replicas.parallel.recompute = deck::Recompute::none;
  replicas.parallel.recompute_layers = "all";
  MPI_Comm group = MPI_COMM_NULL;
  MPI_Comm_split(test::world(), rank / ranks_of_reference(config), rank, &group);
  test::Numbers numbers = test::run_training(replicas, group, steps);
  MPI_Comm_free(&group);
  return numbers;
}

// Without a rotation the bias of the keys adds the same to all scores of a query: its gradient is rounding.
std::set<std::string> without_gradient(const deck::ModelConfig& model) {
  if (model.position_embedding_type == deck::PositionEmbedding::rope) return {};
  return {"model/layers/self_attn/k_proj/bias"};
}

struct Trial {
  Choice choice;
  deck::Config config;
  std::set<Pair> pairs;
};

// Every part of a model and of its training is in some run: what axes without a group list.
void expect_all_drawn(const std::vector<Trial>& runs) {
  for (std::size_t a = 0; a < axes.size(); ++a) {
    if (std::string(axes[a].name).find('.') != std::string::npos) continue;
    for (std::size_t value = 0; value < axes[a].values.size(); ++value) {
      EXPECT_TRUE(std::ranges::any_of(runs, [&](const Trial& run) { return run.choice[a] == value; }))
          << axes[a].name << " " << axes[a].values[value];
    }
  }
}

// Greedily, the run with the most pairs that have not met yet. Their number only falls: a run is counted again when it
// may have the most.
std::vector<Trial> cover(const std::vector<Trial>& legal) {
  std::set<Pair> open;
  for (const Trial& run : legal) open.insert(run.pairs.begin(), run.pairs.end());
  std::priority_queue<std::pair<std::ptrdiff_t, std::ptrdiff_t>> most;  // pairs, at most; the run, negative
  for (const Trial& run : legal) most.emplace(std::ssize(run.pairs), &legal.front() - &run);
  std::vector<Trial> chosen;
  while (!open.empty()) {
    const std::ptrdiff_t number = most.top().second;
    most.pop();
    const Trial& run = legal[static_cast<std::size_t>(-number)];
    const auto met = std::ranges::count_if(run.pairs, [&](const Pair& p) { return open.contains(p); });
    if (!most.empty() && std::pair(static_cast<std::ptrdiff_t>(met), number) < most.top()) {
      most.emplace(met, number);
      continue;
    }
    for (const Pair& pair : run.pairs) open.erase(pair);
    chosen.push_back(run);
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
    std::vector<std::string> set{"model.num_hidden_layers=9",  "checkpoint.resume=none", "checkpoint.at_end=false",
                                 "data.sequence_length=13",    "parallel.dp=0",          "optimizer.eps=1e-3",
                                 "data.path=" + tokens_.path()};
    for (std::size_t a = 0; a + 1 < axes.size(); ++a) {
      const std::string name = axes[a].name, &value = axes[a].values[choice[a]];
      const bool is_key = name.find('.') != std::string::npos;
      if (name == "pairs" && !value.empty()) set.push_back("data.path=" + tokens_.path_of_pairs());
      std::istringstream keys(is_key ? name + "=" + value : value);
      set.insert(set.end(), std::istream_iterator<std::string>(keys), {});
    }
    return test::deck_if_legal(axes.back().values[choice.back()], set, ranks_);
  }

  // Of each, option after option is drawn, in a random order, and kept where the deck allows it.
  std::vector<Trial> legal_trials() const {
    std::mt19937 random(2024);
    std::vector<Trial> legal;
    std::vector<std::size_t> order(axes.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (int i = 0; i < candidates; ++i) {
      Choice choice(axes.size(), 0);
      std::optional<deck::Config> config;
      while (!config) {  // of a grid, the first axes, and of a model, the last
        for (std::size_t axis = 0; axis < 5; ++axis) choice[axis] = random() % axes[axis].values.size();
        choice.back() = random() % axes.back().values.size();
        if (may_be_legal(choice, ranks_)) config = config_of(choice);
      }
      for (std::size_t n = order.size(); n > 1; --n) std::swap(order[n - 1], order[random() % n]);
      for (const std::size_t axis : order) {
        Choice next = choice;
        next[axis] = random() % axes[axis].values.size();
        if (next == choice || !may_be_legal(next, ranks_)) continue;
        if (auto found = config_of(next)) {
          choice = next;
          config = std::move(found);
        }
      }
      legal.push_back({choice, *config, pairs_of(choice, *config)});
    }
    return legal;
  }

  test::TokensOfDocuments tokens_;
  int ranks_ = 1, rank_ = 0;
};

TEST_F(Matrix, EveryPairOfOptionsFollowsTheSerialRun) {
  const std::vector<Trial> legal = legal_trials(), all = cover(legal);
  expect_all_drawn(all);
  const std::vector<Trial> runs = test::sampled(all, runs_in_ci, test::world());
  std::map<std::vector<std::string>, test::Numbers> references;
  double worst = 0.0;
  for (const auto& [choice, config, pairs] : runs) {
    SCOPED_TRACE(text(choice));
    // Each run that is followed, and each run, computes its own file of the reference model.
    deck::Config followed = config, together = config;
    if (config.preference.beta > 0.0) {
      followed.preference.reference = tokens_.new_path(rank_ / ranks_of_reference(config));
      together.preference.reference = tokens_.new_path(0);
    }
    test::Numbers& reference = references[keys_of_reference(choice, config)];
    if (reference.losses.empty()) reference = reference_of(followed, rank_);
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
      test::expect_predicted_traffic(config, ours);
      const std::set<std::string> rounding = without_gradient(config.model);
      test::expect_same_state(ours.parameters, reference.parameters, rounding);
      if (!reference.ema.empty()) test::expect_same_state(ours.ema, reference.ema, rounding);
      for (const auto& [name, state] : reference.states) {
        if (!state.empty()) test::expect_same_state(ours.states.at(name), state, rounding);
      }
      worst = test::larger(worst, test::worst_loss_difference(ours, reference));
    });
    if (testing::Test::HasFailure()) break;
  }
  if (rank_ != 0) return;
  std::printf("%zu of %zu runs on %d ranks, of %zu legal decks: worst relative difference %.1e\n", runs.size(),
              all.size(), ranks_, legal.size(), worst);
}

}  // namespace
}  // namespace nanotron
