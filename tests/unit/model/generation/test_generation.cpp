// ranks: 1 2 3
#include "nanotron/model/generation/generation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "nanotron/base/error.hpp"
#include "support/differences.hpp"
#include "support/world.hpp"

namespace nanotron::model {
namespace {

struct Case {
  const char* name;
  deck::ModelConfig model;
};

deck::ModelConfig sizes(index_t heads, index_t key_heads, bool bias, bool norm, bool tied) {
  deck::ModelConfig m;
  m.hidden_size = 24;
  m.num_hidden_layers = 3;
  m.num_attention_heads = heads;
  m.num_key_value_heads = key_heads;
  m.head_dim = 8;
  m.intermediate_size = 35;
  m.vocab_size = 53;
  m.tie_word_embeddings = tied;
  m.qkv_bias = bias;
  m.qk_norm = norm;
  m.initializer_range = 0.3;
  return m;
}

deck::ModelConfig with_experts(deck::ModelConfig m, index_t shared) {
  m.moe = {.num_experts = 5,
           .num_experts_per_tok = 2,
           .moe_intermediate_size = 7,
           .shared_expert_intermediate_size = shared,
           .norm_topk_prob = shared == 0};
  return m;
}

deck::ModelConfig with_layers(deck::ModelConfig m, deck::NormPlacement placement, deck::ParallelResidual parallel,
                              deck::HiddenAct act) {
  m.norm_placement = placement;
  m.parallel_residual = parallel;
  m.hidden_act = act;
  return m;
}

// Windows and rotation of some layers, a part of a head rotated, scores with a cap and a sink.
deck::ModelConfig with_patterns(deck::ModelConfig m) {
  m.sliding_window = 5;
  m.window_layers = "0-1";
  m.rope_layers = "!1";
  m.rope_local_theta = 100.0;
  m.partial_rotary_factor = 0.5;
  m.rope_interleaved = m.attention_sinks = true;
  m.attn_logit_softcapping = 2.0;
  return m;
}

deck::ModelConfig with_alibi(deck::ModelConfig m) {
  m.position_embedding_type = deck::PositionEmbedding::alibi;
  m.attention_multiplier = 0.5;
  m.qk_norm_over = deck::QkNormOver::projection;
  return m;
}

// Latent attention: its cache holds compressed tokens, to which keys and values are absorbed.
deck::ModelConfig with_latent(deck::ModelConfig m, index_t query_rank, index_t value) {
  m.q_lora_rank = query_rank;
  m.kv_lora_rank = 12;
  m.qk_nope_head_dim = 6;
  m.qk_rope_head_dim = 4;
  m.head_dim = 10;
  m.v_head_dim = value;
  m.rope_interleaved = query_rank > 0;
  return m;
}

const std::vector<Case> cases{
    {"grouped queries, uneven", sizes(6, 3, false, false, false)},
    {"shared key heads, bias", sizes(4, 1, true, false, true)},
    {"head norms", sizes(4, 4, false, true, false)},
    {"norms after the blocks", with_layers(sizes(4, 2, false, true, false), deck::NormPlacement::post,
                                           deck::ParallelResidual::none, deck::HiddenAct::xielu)},
    {"norms on both sides", with_layers(sizes(4, 2, false, false, true), deck::NormPlacement::sandwich,
                                        deck::ParallelResidual::none, deck::HiddenAct::geglu_tanh)},
    {"blocks side by side", with_layers(sizes(4, 2, true, false, false), deck::NormPlacement::pre,
                                        deck::ParallelResidual::one_norm, deck::HiddenAct::relu2)},
    {"layers that differ", with_patterns(sizes(4, 2, true, false, false))},
    {"alibi, norm of projections", with_alibi(sizes(4, 1, false, true, false))},
    {"experts", with_experts(sizes(4, 2, false, false, false), 0)},
    {"a shared expert", with_experts(sizes(4, 2, true, false, false), 9)},
    {"latent", with_latent(sizes(4, 4, false, false, false), 9, 7)},
    {"latent keys and values", with_latent(sizes(6, 6, false, false, true), 0, 10)}};

template <class T>
class Cached : public testing::Test {
 protected:
  using M = master_t<T>;

  // The same random weights whatever the class and the grid.
  void initialise(const Transformer<T>& model) {
    model::initialise<M>(model.table(), 5, model.parameters().master, model.parameters().layouts.master);
    const_cast<Transformer<T>&>(model).refresh_compute_weights();
  }

  GenerationSetup setup(const deck::ModelConfig& model, index_t sequences, index_t capacity, index_t chunk) {
    return {.model = model, .sequences = sequences, .capacity = capacity, .chunk = chunk, .tp = &tp_};
  }

  struct Owned {
    Arena arena;
    Generator<T> generator;
    Owned(const MemoryPlan& plan, const GenerationSetup& setup, Device& device)
        : arena(plan), generator(setup, device, arena) {}
  };
  std::unique_ptr<Owned> make(const GenerationSetup& setup) {
    Arena planning = Arena::planning();
    static_cast<void>(Generator<T>(setup, device_, planning));
    auto owned = std::make_unique<Owned>(planning.plan(), setup, device_);
    initialise(owned->generator.transformer());
    return owned;
  }

  Timers timers_;
  Device device_{timers_};
  comm::Group tp_{comm::Communicator::duplicate(test::world()), test::device_transport()};
};

template <class T>
double tolerance() {
  return std::is_same_v<T, double> ? 1e-12 : std::is_same_v<T, float> ? 2e-5 : 0.15;
}

std::int32_t token_at(index_t sequence, index_t position) {
  return static_cast<std::int32_t>((17 * position + 29 * sequence + position * position) % 53);
}

std::vector<std::int32_t> tokens_of(index_t sequences, index_t begin, index_t count) {
  std::vector<std::int32_t> tokens;
  for (index_t s = 0; s < sequences; ++s) {
    for (index_t i = 0; i < count; ++i) tokens.push_back(token_at(s, begin + i));
  }
  return tokens;
}

using Types = testing::Types<double, float, bf16>;
TYPED_TEST_SUITE(Cached, Types);

TYPED_TEST(Cached, LogitsAreThoseOfTheWholePrefix) {
  constexpr index_t sequences = 2, length = 13;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    auto cached = this->make(this->setup(c.model, sequences, length, 4));
    auto whole = this->make(this->setup(c.model, sequences, length, length));
    cached->generator.extend(tokens_of(sequences, 0, 6));  // a chunk of four and one of two
    for (index_t n = 7; n <= length; ++n) {
      const auto step = cached->generator.extend(tokens_of(sequences, n - 1, 1));
      whole->generator.reset();
      const auto all = whole->generator.extend(tokens_of(sequences, 0, n));
      ASSERT_EQ(step.size(), static_cast<std::size_t>(sequences * c.model.vocab_size));
      EXPECT_LT(test::largest_difference(step, all), tolerance<TypeParam>()) << "length " << n;
    }
  }
}

// The training forward gives losses: log(sum exp(l)) - l_target of each token.
TYPED_TEST(Cached, LogitsAreThoseOfTraining) {
  constexpr index_t length = 11;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const TransformerSetup setup{.model = c.model,
                                 .purpose = Purpose::inference,
                                 .sequences = 1,
                                 .length = length,
                                 .key_length = length,
                                 .tp = &this->tp_};
    Arena planning = Arena::planning();
    static_cast<void>(Transformer<TypeParam>(setup, this->device_, planning));
    static_cast<void>(planning.take<double>(MemoryKind::workspace, length));
    static_cast<void>(planning.take<std::int32_t>(MemoryKind::workspace, length + 1));
    Arena arena(planning.plan());
    Transformer<TypeParam> training(setup, this->device_, arena);
    this->initialise(training);
    const auto losses = arena.take<double>(MemoryKind::workspace, length);
    const auto tokens = arena.take<std::int32_t>(MemoryKind::workspace, length + 1);
    const auto host_tokens = Kokkos::create_mirror_view(tokens);
    for (index_t i = 0; i <= length; ++i) host_tokens(i) = token_at(0, i);
    Kokkos::deep_copy(tokens, host_tokens);
    training.embed({}, Vector<const std::int32_t>(tokens.data(), length));
    training.forward({});
    training.loss({}, Vector<const std::int32_t>(tokens.data() + 1, length), losses);
    const auto host_losses = Kokkos::create_mirror_view(losses);
    Kokkos::deep_copy(host_losses, losses);

    auto cached = this->make(this->setup(c.model, 1, length, 4));
    for (index_t i = 0; i < length; ++i) {
      const auto logits = cached->generator.extend(tokens_of(1, i, 1));
      double sum = 0.0;
      for (const double l : logits) sum += std::exp(l);
      const double loss = std::log(sum) - logits[static_cast<std::size_t>(token_at(0, i + 1))];
      EXPECT_NEAR(loss, host_losses(i), tolerance<TypeParam>()) << "token " << i;
    }
  }
}

TYPED_TEST(Cached, SequencesDoNotSeeEachOther) {
  const deck::ModelConfig& model = cases[0].model;
  auto both = this->make(this->setup(model, 2, 9, 4));
  auto alone = this->make(this->setup(model, 1, 9, 4));
  const auto vocabulary = static_cast<std::size_t>(model.vocab_size);
  for (index_t i = 0; i < 9; ++i) {
    const auto pair = both->generator.extend(tokens_of(2, i, 1));
    const auto one = alone->generator.extend(std::vector<std::int32_t>{token_at(0, i)});
    EXPECT_LT(test::largest_difference(pair.first(vocabulary), one), tolerance<TypeParam>());
  }
}

TYPED_TEST(Cached, GreedyContinuationIsThatOfTheWholePrefix) {
  const deck::ModelConfig& model = cases[0].model;
  auto cached = this->make(this->setup(model, 1, 20, 4));
  const GenerationRequest request{.prompt = tokens_of(1, 0, 7), .new_tokens = 13, .sampling = {.temperature = 0.0}};
  const auto answer = cached->generator.generate(request);
  ASSERT_EQ(answer.size(), 1u);
  ASSERT_EQ(answer[0].size(), 13u);
  if (std::is_same_v<TypeParam, bf16>) return;  // ties are too likely
  std::vector<std::int32_t> prefix = request.prompt;
  for (const std::int32_t token : answer[0]) {
    cached->generator.reset();
    const auto logits = cached->generator.extend(prefix);
    EXPECT_EQ(token, std::max_element(logits.begin(), logits.end()) - logits.begin());
    prefix.push_back(token);
  }
}

TYPED_TEST(Cached, SamplesAreReproducibleDifferAndTheSameOnEveryRank) {
  const deck::ModelConfig& model = cases[1].model;
  auto owned = this->make(this->setup(model, 3, 30, 8));
  const GenerationRequest request{.prompt = {3, 1, 4}, .new_tokens = 27, .sampling = {.seed = 11}};
  const auto answer = owned->generator.generate(request);
  EXPECT_EQ(answer, owned->generator.generate(request));
  EXPECT_NE(answer[0], answer[1]);
  EXPECT_NE(answer[1], answer[2]);
  for (const auto& sample : answer) {
    for (const std::int32_t token : sample) {
      EXPECT_EQ(comm::max(this->tp_, std::int64_t{token}), comm::min(this->tp_, std::int64_t{token}));
    }
  }
}

TYPED_TEST(Cached, StopsAtTheEndOfText) {
  const deck::ModelConfig& model = cases[0].model;
  auto owned = this->make(this->setup(model, 2, 30, 8));
  GenerationRequest request{.prompt = {9, 2}, .new_tokens = 28, .sampling = {.seed = 3}};
  const auto free = owned->generator.generate(request);
  request.eos = free[0][4];
  const auto stopped = owned->generator.generate(request);
  for (std::size_t s = 0; s < 2; ++s) {
    const auto end = std::find(free[s].begin(), free[s].end(), *request.eos);
    EXPECT_EQ(stopped[s], std::vector<std::int32_t>(free[s].begin(), end)) << "sequence " << s;
  }
}

TYPED_TEST(Cached, RefusesMoreThanItsContext) {
  auto owned = this->make(this->setup(cases[0].model, 1, 5, 4));
  owned->generator.extend(tokens_of(1, 0, 4));
  try {
    owned->generator.extend(tokens_of(1, 0, 2));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::deck_error);
    EXPECT_NE(std::string(error.what()).find("at most 5 tokens"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace nanotron::model
