#pragma once

// The gradient of a whole model in fp64: against central finite differences of its loss; over micro-batches; in two
// parts. A test instantiates Gradient with its variants.

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "nanotron/base/random.hpp"
#include "nanotron/comm/process_grid.hpp"
#include "nanotron/deck/later_tokens.hpp"
#include "nanotron/model/layers/partial_gradients.hpp"
#include "nanotron/model/layers/transformer.hpp"
#include "nanotron/nn/preference/pair_losses.hpp"
#include "support/device_values.hpp"
#include "support/world.hpp"

namespace nanotron::model {

// Of experts: sharded over the tensor-parallel ranks; whole, on each of them; whole, each on one of them.
enum class ExpertRanks { sharded, on_each, over_ranks };

struct Variant {
  const char* name;
  bool tied, bias, norm;
  deck::TpMode mode;
  deck::MoeConfig moe{};
  void (*change)(deck::ModelConfig&) = nullptr;  // to another architecture
  double z_loss = 0.0;
  const char* adapted = "";  // lora%targets, of rank 3; empty: no adapters
  double beta = 0.0;         // the sequences are pairs, of 4 positions and the rest
  index_t mlp_tile = 0;      // parallel%mlp_tile
  ExpertRanks experts = ExpertRanks::sharded;
};

inline comm::GridShape tensor_parallel(const Variant& v, int ranks) {
  return {.tp = ranks,
          .ep = v.experts == ExpertRanks::over_ranks ? ranks : 1,
          .ep_spans_tp = v.experts != ExpertRanks::sharded && ranks > 1};
}

inline deck::LoraConfig adapters(const Variant& v) {
  if (*v.adapted == '\0') return {};
  return {.rank = 3, .alpha = 5.0, .targets = v.adapted};
}

inline deck::ModelConfig tiny(const Variant& v) {
  deck::ModelConfig m;
  m.hidden_size = 12;
  m.num_hidden_layers = 2;
  m.num_attention_heads = 3;
  m.num_key_value_heads = 1;
  m.head_dim = 6;
  m.intermediate_size = 17;
  m.vocab_size = 23;
  m.initializer_range = 0.4;
  m.tie_word_embeddings = v.tied;
  m.qkv_bias = v.bias;
  m.qk_norm = v.norm;
  m.moe = v.moe;
  if (v.change != nullptr) v.change(m);
  return m;
}

class Gradient : public testing::TestWithParam<Variant> {
 protected:
  static constexpr index_t sequences = 2, length = 9, tokens = sequences * length;

  Gradient()
      : world_(comm::Communicator::duplicate(test::world())),
        grid_(world_, tensor_parallel(GetParam(), world_.size()), test::device_transport()),
        device_(timers_),
        setup_{.model = tiny(GetParam()),
               .objective = {GetParam().z_loss, GetParam().beta > 0.0},
               .lora = adapters(GetParam()),
               .sequences = sequences,
               .length = length,
               .key_length = length,
               .stages = {{.layers = {0, 2}, .slots = 2}},
               .backward = Backward::two_parts,
               .tp_mode = GetParam().mode,
               .overlap = {.chunks = 3},
               .mlp_tile = GetParam().mlp_tile,
               .tp = &grid_.tp(),
               .ep = &grid_.ep(),
               .ep_spans_tp = grid_.shape().ep_spans_tp,
               .seed = 8},
        arena_(plan()),
        model_(setup_, device_, arena_),
        inputs_("inputs", tokens),
        targets_("targets", tokens),
        losses_("losses", tokens),
        lse2_("lse2", tokens),
        later_inputs_("later_inputs", deck::appended_layers(setup_.model) * tokens),
        later_targets_("later_targets", later_inputs_.size()),
        later_losses_("later_losses", later_inputs_.size()),
        starts_("starts", tokens),
        pair_memory_(plan_of_pairs()),
        pairs_(pair_setup(), pair_memory_) {
    initialise<double>(model_.table(), 5, model_.parameters().master, model_.parameters().layouts.master);
    perturb();
    for (const index_t m : {0, 1})
      model_.set_packing({.index = m}, {.step_tokens = tokens, .samples = {.first = 6, .shards = 2}});
    std::vector<std::int32_t> inputs, targets;
    for (index_t i = 0; i < tokens; ++i) {
      inputs.push_back(static_cast<std::int32_t>(i * 7 % 23));
      targets.push_back(i == 4 ? -1 : static_cast<std::int32_t>(i * 5 % 23));  // one ignored
    }
    test::set_values(inputs_, inputs);
    test::set_values(targets_, targets);
    set_later();
    set_pairs();
  }

  nn::PairSetup pair_setup() {
    const auto rewards = [&] { return Vector<double>(rewards_.data(), sequences); };
    return {.beta = GetParam().beta,
            .micro_batches = 1,
            .sequences = sequences,
            .rows = {{{0, length}, {length, length}}, length, Vector<const std::int32_t>(starts_.data(), tokens)},
            .rewards = {rewards(), rewards(), rewards()},
            .cp = &grid_.cp()};
  }
  MemoryPlan plan_of_pairs() {
    Arena planning = Arena::planning();
    const nn::PairLosses pairs(pair_setup(), planning);
    return planning.plan();
  }
  void set_pairs() {
    if (!pairs_.exist()) return;
    std::vector<std::int32_t> starts;
    for (index_t i = 0; i < tokens; ++i) starts.push_back(i % length < 4 ? 0 : 4);
    test::set_values(starts_, starts);
    test::set_values(pairs_.reference(), std::vector<double>{-11.0, -14.5, -13.0, -12.0});
  }

  // Any tokens, and some positions without input or target.
  void set_later() {
    std::vector<std::int32_t> inputs, targets;
    for (index_t i = 0; i < static_cast<index_t>(later_inputs_.size()); ++i) {
      inputs.push_back(i % 9 == 8 ? -1 : static_cast<std::int32_t>(i * 11 % 23));
      targets.push_back(i % 9 > 6 ? -1 : static_cast<std::int32_t>(i * 13 % 23));
    }
    test::set_values(later_inputs_, inputs);
    test::set_values(later_targets_, targets);
    model_.set_later_tokens({Vector<const std::int32_t>(later_inputs_.data(), later_inputs_.size()),
                             Vector<const std::int32_t>(later_targets_.data(), later_targets_.size()),
                             Vector<double>(later_losses_.data(), later_losses_.size()), later_weight});
  }

  MemoryPlan plan() {
    Arena planning = Arena::planning();
    const Transformer<double> model(setup_, device_, planning);
    return planning.plan();
  }

  // Norms of one, and biases and adapters of zero, would hide mistakes.
  void perturb() {
    std::vector<double> master = test::values_of(model_.parameters().master);
    for (const nn::ParameterSpec& s : model_.table().specs) {
      if (!s.is_1d && s.initial != nn::Initial::zeros) continue;
      for (index_t l = 0; l < s.local_layers(); ++l) {
        for (index_t i = 0; i < s.local_size(); ++i) {
          const auto index = static_cast<std::uint64_t>(s.logical_index(l)(i));
          master[static_cast<std::size_t>(s.offset_of(l) + i)] += 0.3 * normal(9, stream_id(s.name), index);
        }
      }
    }
    test::set_values(model_.parameters().master, master);
  }

  double loss() {
    model_.embed({}, Vector<const std::int32_t>(inputs_.data(), tokens));
    model_.forward({});
    model_.loss({}, Vector<const std::int32_t>(targets_.data(), tokens), Vector<double>(losses_.data(), tokens));
    if (pairs_.exist()) {
      pairs_.of(0)->of(device_, Vector<const double>(losses_.data(), tokens));
      pairs_.of(0)->replace(device_, Vector<double>(losses_.data(), tokens));
      device_.fence();
    }
    const std::vector<double> losses = test::values_of(losses_);
    return std::accumulate(losses.begin(), losses.end(), 0.0) * scale + router_losses() + z_loss() + later_loss();
  }

  // The sums of the other losses are backward's: it is run for them, and what it adds to the gradient taken back.
  void run_backward_for_its_sums() {
    const auto gradient = model_.parameters().gradient;
    const std::vector<double> kept = test::values_of(gradient);
    Kokkos::deep_copy(model_.statistics(), 0.0);
    backward();
    test::set_values(gradient, kept);
  }

  double z_loss() {
    if (setup_.objective.z_coefficient == 0.0) return 0.0;
    run_backward_for_its_sums();
    const std::vector<double> lse2 = test::values_of(lse2_);
    return setup_.objective.z_coefficient * scale * std::accumulate(lse2.begin(), lse2.end(), 0.0);
  }

  double later_loss() {
    if (later_losses_.size() == 0) return 0.0;
    run_backward_for_its_sums();
    const std::vector<double> losses = test::values_of(later_losses_);
    return later_weight * scale * std::accumulate(losses.begin(), losses.end(), 0.0);
  }

  // By their formulas.
  double router_losses() {
    const deck::MoeConfig& moe = setup_.model.moe;
    if (moe.num_experts == 0 || moe.router_aux_loss_coef == 0.0) return 0.0;
    run_backward_for_its_sums();
    const std::vector<double> sums = test::values_of(model_.statistics());
    const auto columns = model_.statistics().extent(1);
    const auto e = static_cast<double>(moe.num_experts), k = static_cast<double>(moe.num_experts_per_tok);
    double balance = 0.0, z = 0.0;  // sums over the layers
    for (index_t l = 0; l < deck::stored_layers(setup_.model); ++l) {
      double share_by_mean = 0.0;  // sum over sequences and experts of f_e P_e
      for (index_t i = 0; i < moe.num_experts; ++i) share_by_mean += sums[l * columns + i] / (k * length * length);
      balance += e * share_by_mean / sequences;
      z += sums[l * columns + 2 * moe.num_experts] / tokens;
    }
    if (moe.router_aux_loss_scale == deck::AuxLossScale::hugging_face) {
      balance *= k / static_cast<double>(deck::stored_layers(setup_.model));
    }
    return moe.router_aux_loss_coef * balance + moe.router_z_loss_coef * z;
  }

  void backward() {
    add_gradient();
    sum_parts();
  }

  // Over the ranks that hold parts of a gradient.
  void sum_parts() {
    for (const Section& section : model_.table().sections) {
      if (section.is_frozen) continue;
      Arena planning = Arena::planning();
      static_cast<void>(PartialGradients<double>(model_, section, device_, planning));
      Arena arena(planning.plan());
      PartialGradients<double>(model_, section, device_, arena).sum(section.flat);
    }
  }

  // Of a micro-batch, to what is there; sums over the ranks that hold parts of it are left out.
  void add_gradient() {
    const Vector<const std::int32_t> inputs(inputs_.data(), tokens);
    model_.embed({}, inputs);
    model_.forward({});
    model_.loss_backward({}, Vector<const std::int32_t>(targets_.data(), tokens), scale, loss_rows(),
                         model_.hidden_gradient(0));
    after_loss({});
    for (index_t l = setup_.model.num_hidden_layers - 1; l >= 0; --l) {
      model_.backward_layer({}, l, model_.hidden_gradient(0));
    }
    model_.backward_embedding({}, inputs, model_.hidden_gradient(0));
  }

  void after_loss(const Slot& slot) {
    for (index_t i = 0; i < model_.steps_after_loss(); ++i)
      model_.backward_after_loss(slot, i, model_.hidden_gradient(0));
  }

  nn::LossRows loss_rows() const {
    return {Vector<double>(losses_.data(), tokens), Vector<double>(lse2_.data(), tokens), pairs_.of(0)};
  }

  // Adds `amount` to one logical element on every rank that holds it; the rank's gradient there, or 0.
  double shift(const nn::ParameterSpec& s, index_t layer, index_t row, index_t column, double amount) {
    const bool by_columns = s.partition == nn::Partition::row_parallel;
    if (s.local_layers() == 0 || !s.local.contains(by_columns ? column : row)) return 0.0;
    const index_t r = row - (by_columns ? 0 : s.local.begin);
    const index_t c = column - (by_columns ? s.local.begin : 0);
    const index_t at = s.offset_of(layer) + r * s.local_columns() + c;
    const auto& master = model_.parameters().master;
    if (amount != 0.0) test::set_value(master, at, test::value_at(master, at) + amount);
    const bool owner = s.owned.contains(by_columns ? column : row);
    if (!owner || s.is_frozen) return 0.0;
    return test::value_at(model_.parameters().gradient, model_.parameters().layouts.gradient.at(at));
  }

  static constexpr double scale = 1.0 / tokens, later_weight = 0.7;
  Timers timers_;
  comm::Communicator world_;
  comm::ProcessGrid grid_;
  Device device_;
  TransformerSetup setup_;
  Arena arena_;
  Transformer<double> model_;
  Kokkos::View<std::int32_t*, MemorySpace> inputs_, targets_;
  Kokkos::View<double*, MemorySpace> losses_, lse2_;
  Kokkos::View<std::int32_t*, MemorySpace> later_inputs_, later_targets_;
  Kokkos::View<double*, MemorySpace> later_losses_;
  Kokkos::View<std::int32_t*, MemorySpace> starts_;
  Kokkos::View<double*, MemorySpace> rewards_{"rewards", sequences};
  Arena pair_memory_;
  nn::PairLosses pairs_;
};

TEST_P(Gradient, MeetsFiniteDifferences) {
  backward();
  constexpr double h = 1e-5;
  for (const nn::ParameterSpec& s : model_.table().specs) {
    if (s.is_frozen) continue;
    for (int sample = 0; sample < 6; ++sample) {
      const auto pick = [&](index_t extent, int salt) {
        return static_cast<index_t>(uniform(3, stream_id(s.name), static_cast<std::uint64_t>(sample * 10 + salt)) *
                                    0.999999 * static_cast<double>(extent));
      };
      const index_t layer = pick(s.layers, 0), row = pick(s.rows, 1), column = pick(s.columns, 2);
      const double gradient = comm::sum(grid_.tp(), shift(s, layer, row, column, 0.0));
      shift(s, layer, row, column, h);
      const double above = loss();
      shift(s, layer, row, column, -2 * h);
      const double below = loss();
      shift(s, layer, row, column, h);
      // The difference quotient is good to h^2 and to rounding / h.
      EXPECT_NEAR(gradient, (above - below) / (2 * h), 1e-9 + 1e-6 * std::abs(gradient))
          << s.name << " layer " << layer << " (" << row << ", " << column << ")";
    }
  }
}

TEST_P(Gradient, AccumulatesOverMicroBatches) {
  backward();
  const auto gradient = model_.parameters().gradient;
  const std::vector<double> once = test::values_of(gradient);
  // The parts are summed of the accumulated sum: start again and run two micro-batches.
  Kokkos::deep_copy(gradient, 0.0);
  for (int m = 0; m < 2; ++m) add_gradient();
  sum_parts();
  const std::vector<double> twice = test::values_of(gradient);
  for (std::size_t i = 0; i < once.size(); ++i) {
    ASSERT_NEAR(twice[i], 2 * once[i], 1e-13 + 1e-12 * std::abs(once[i]));
  }
}

// Two micro-batches in flight, their gradients in the order of a pipeline that splits backward.
TEST_P(Gradient, InTwoPartsHasTheSameBits) {
  const Vector<const std::int32_t> inputs(inputs_.data(), tokens), targets(targets_.data(), tokens);
  const auto gradient = model_.parameters().gradient;
  const Matrix<double> dx = model_.hidden_gradient(0);
  const auto begin = [&](Slot slot) {
    model_.embed(slot, inputs);
    model_.forward(slot);
  };
  const auto lose = [&](Slot slot) {
    model_.loss_backward(slot, targets, scale, loss_rows(), dx);
    after_loss(slot);
  };
  for (index_t m = 0; m < 2; ++m) {
    begin({});
    lose({});
    for (index_t l = 1; l >= 0; --l) model_.backward_layer({}, l, dx);
    model_.backward_embedding({}, inputs, dx);
  }
  const std::vector<double> whole = test::values_of(gradient);

  Kokkos::deep_copy(gradient, 0.0);
  for (index_t m = 0; m < 2; ++m) begin({.index = m});
  for (index_t m = 0; m < 2; ++m) {
    lose({.index = m});
    for (index_t l = 1; l >= 0; --l) model_.backward_layer_input({.index = m}, l, dx);
    model_.backward_embedding({.index = m}, inputs, dx);
  }
  for (index_t l = 1; l >= 0; --l) {
    for (index_t m = 0; m < 2; ++m) model_.backward_layer_weight({.index = m}, l);
  }
  EXPECT_EQ(test::values_of(gradient), whole);
}

}  // namespace nanotron::model
