// ranks: 1 2
// timeout: 1200
// precision%reproducible = 'layout': every build and machine computes the bits in tests/golden/layout_bits.txt, a line
// for each deck: its name and a hash of losses, gradient norms, weights and states of the optimizer after 3 steps. With
// NANOTRON_LAYOUT_BITS=<file> what this build computes is written there in the same form.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>

#include "support/comparison.hpp"
#include "support/drawn_decks.hpp"
#include "support/sampling.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = 3;
constexpr std::size_t drawn_decks = 30, drawn_decks_in_ci = 8;

struct Case {
  std::string name, model;
  std::vector<std::string> set;
};

const std::vector<Case> fixed{
    {"fp64", "llama", {"precision.compute=fp64", "model.num_key_value_heads=4", "precision.tensor_shards=4"}},
    {"fp32", "llama", {"precision.compute=fp32", "model.num_key_value_heads=4", "precision.context_shards=4"}},
    {"bf16", "llama", {"precision.compute=bf16", "model.num_key_value_heads=4", "precision.tensor_shards=4"}},
    {"bf16_moments", "qwen2", {"precision.compute=bf16", "precision.tensor_shards=2", "precision.moments=bf16"}},
    {"documents", "qwen3", {"precision.compute=fp32", "data.document_mask=block_diagonal"}},
    {"xielu", "llama", {"precision.compute=fp32", "precision.tensor_shards=1", "model.hidden_act=xielu"}},
    {"soft_caps",
     "llama",
     {"precision.compute=fp32", "model.num_key_value_heads=4", "precision.tensor_shards=4", "model.attention_sinks=t",
      "model.sliding_window=7", "model.window_layers=1:1", "model.attn_logit_softcapping=3",
      "model.final_logit_softcapping=2", "model.partial_rotary_factor=0.5"}},
    {"dropout",
     "llama",
     {"precision.compute=bf16", "precision.tensor_shards=2", "model.hidden_dropout=0.1",
      "model.attention_dropout=0.2"}},
    {"gelu", "gpt2", {"precision.compute=fp32", "precision.tensor_shards=1"}},
    {"gelu_erf", "gpt_neox", {"precision.compute=fp64", "precision.tensor_shards=1"}},
    {"latent",
     "llama",
     {"precision.compute=bf16", "model.kv_lora_rank=12", "model.q_lora_rank=10", "model.qk_nope_head_dim=6",
      "model.qk_rope_head_dim=4", "model.v_head_dim=8", "model.head_dim=0", "model.num_key_value_heads=0",
      "precision.tensor_shards=4", "precision.context_shards=2"}},
    {"shared_keys",
     "qwen3",
     {"precision.compute=bf16", "model.num_attention_heads=8", "model.num_key_value_heads=2", "model.head_dim=6",
      "precision.tensor_shards=8", "precision.context_shards=2"}},
    {"experts", "mixtral", {"precision.compute=fp32", "precision.tensor_shards=1"}},
    {"sigmoid_experts", "qwen3_moe", {"precision.compute=bf16", "precision.tensor_shards=2"}},
    {"muon", "qwen3", {"precision.compute=fp32", "precision.tensor_shards=2", "optimizer.name=muon"}}};

// FNV-1a of 64-bit words.
class Hash {
 public:
  void add(std::span<const double> values) {
    for (const double value : values) hash_ = (hash_ ^ std::bit_cast<std::uint64_t>(value)) * 1099511628211u;
  }
  void add(const test::Tensors& tensors) {
    for (const auto& [name, tensor] : tensors) add(tensor);
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 14695981039346656037u;
};

std::uint64_t hash_of(const test::Numbers& run) {
  Hash hash;
  hash.add(run.losses);
  hash.add(run.grad_norms);
  hash.add(run.parameters);
  for (const auto& [name, state] : run.states) hash.add(state);
  return hash.value();
}

class LayoutBits : public testing::Test {
 protected:
  LayoutBits() : tokens_("layout_bits", 6000) {
    MPI_Comm_size(test::world(), &ranks_);
    MPI_Comm_rank(test::world(), &rank_);
    std::ifstream file(test::test_folder() / "golden" / "layout_bits.txt");
    std::string name, hash;
    while (file >> name >> hash) stored_[name] = hash;
  }

  // On all ranks, divided over heads and features where the deck allows that, else over sequences.
  std::optional<deck::Config> config_of(const Case& c) const {
    for (const char* const grid : {"parallel.tp=2", "parallel.tp=1"}) {
      std::vector<std::string> set{"checkpoint.resume=none",
                                   "checkpoint.at_end=false",
                                   "data.sequence_length=24",
                                   "data.global_batch_size=12",
                                   "data.path=" + tokens_.path(),
                                   "precision.reproducible=layout",
                                   "parallel.cp_mode=all_to_all",
                                   "parallel.dp=0",
                                   "parallel.pp=1",
                                   "parallel.cp=1",
                                   ranks_ == 1 ? "parallel.tp=1" : grid};
      set.insert(set.end(), c.set.begin(), c.set.end());
      if (auto config = test::deck_if_legal(c.model, set, ranks_)) return config;
    }
    return std::nullopt;
  }

  void check(const Case& c) {
    const auto config = config_of(c);
    if (!config) return;
    const std::string hash = fmt::format("{:016x}", hash_of(test::run_training(*config, test::world(), steps)));
    EXPECT_EQ(hash, stored_[c.name]) << fmt::format("{}: {} {}", c.name, c.model, fmt::join(c.set, " "));
    found_ += fmt::format("{} {}\n", c.name, hash);
    ++runs_;
  }

  void write() const {
    if (const char* const path = std::getenv("NANOTRON_LAYOUT_BITS"); path != nullptr && rank_ == 0)
      std::ofstream(path, std::ios::app) << found_;
  }

  test::TokensOfDocuments tokens_;
  int ranks_ = 1, rank_ = 0;
  std::map<std::string, std::string> stored_;
  std::string found_;
  std::size_t runs_ = 0;
};

TEST_F(LayoutBits, AreThoseOfEveryMachine) {
  for (const Case& c : fixed) check(c);
  EXPECT_EQ(runs_, fixed.size());
  write();
}

// Decks drawn from the options that change which kernels run.
TEST_F(LayoutBits, OfDrawnDecksAreThoseOfEveryMachine) {
  const std::vector<std::vector<std::string>> options{
      {"precision.compute=fp64", "precision.compute=fp32", "precision.compute=bf16"},
      {"precision.tensor_shards=1", "precision.tensor_shards=2"},
      {"precision.context_shards=1", "precision.context_shards=2", "precision.context_shards=4"},
      {"precision.batch_shards=0", "precision.batch_shards=6"},
      {"precision.moments=master", "precision.moments=bf16"},
      {"data.document_mask=none", "data.document_mask=block_diagonal"},
      {"model.hidden_dropout=0", "model.hidden_dropout=0.1"},
      {"model.tie_word_embeddings=f", "model.tie_word_embeddings=t"},
      {"optimizer.name=adamw", "optimizer.name=lion", "optimizer.name=ademamix"},
      {"schedule.kind=cosine", "schedule.kind=linear", "schedule.kind=inverse_sqrt"},
      {"parallel.recompute=none", "parallel.recompute=full"}};
  const std::vector<std::string> models{"llama", "qwen2", "qwen3", "gemma2", "mixtral", "qwen2_moe", "olmo2"};
  std::mt19937_64 random(2026);
  std::vector<Case> drawn;
  for (std::size_t trial = 0; trial < 400 && drawn.size() < drawn_decks; ++trial) {
    Case c{fmt::format("drawn_{}", trial), models[random() % models.size()], {}};
    for (const auto& values : options) c.set.push_back(values[random() % values.size()]);
    if (config_of(c)) drawn.push_back(c);
  }
  ASSERT_EQ(drawn.size(), drawn_decks);
  for (const Case& c : test::sampled(drawn, drawn_decks_in_ci, test::world())) check(c);
  write();
}

}  // namespace
}  // namespace nanotron
