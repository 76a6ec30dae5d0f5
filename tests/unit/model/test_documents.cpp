// Packed documents: losses and gradients are those of the documents by themselves.
#include <gtest/gtest.h>

#include "nanotron/model/layers/transformer.hpp"
#include "support/device_values.hpp"
#include "support/world.hpp"

namespace nanotron::model {
namespace {

deck::ModelConfig tiny() {
  deck::ModelConfig m;
  m.hidden_size = 12;
  m.num_hidden_layers = 2;
  m.num_attention_heads = 4;
  m.num_key_value_heads = 2;
  m.head_dim = 6;
  m.intermediate_size = 17;
  m.vocab_size = 23;
  m.initializer_range = 0.4;
  m.qk_norm = true;
  return m;
}

constexpr index_t experts = 3;

struct Outcome {
  std::vector<double> losses, gradient, routers{};
};

class PackedDocuments : public testing::Test {
 protected:
  // One sequence of these tokens from position `begin` of the text.
  Outcome run(index_t begin, index_t length, deck::DocumentMask mask, const std::vector<std::int32_t>& starts) {
    const TransformerSetup setup{
        .model = tiny(), .sequences = 1, .length = length, .key_length = length, .stages = {}, .document_mask = mask};
    Arena planning = Arena::planning();
    const Transformer<double> plan(setup, device_, planning);
    Arena arena(planning.plan());
    Transformer<double> model(setup, device_, arena);
    initialise<double>(model.table(), 5, model.parameters().master, model.parameters().layouts.master);
    Kokkos::View<std::int32_t*, MemorySpace> inputs("i", length), targets("t", length), documents("d", starts.size());
    Kokkos::View<double*, MemorySpace> losses("l", length);
    std::vector<std::int32_t> input_ids, target_ids;
    for (index_t i = begin; i < begin + length; ++i) {
      input_ids.push_back(static_cast<std::int32_t>(i * 7 % 23));
      target_ids.push_back(static_cast<std::int32_t>(i * 5 % 23));
    }
    test::set_values(inputs, input_ids);
    test::set_values(targets, target_ids);
    test::set_values(documents, starts);
    Kokkos::deep_copy(model.parameters().gradient, 0.0);
    model.set_packing({}, {.document_starts = documents});
    model.embed({}, inputs);
    model.forward({});
    model.loss_backward({}, targets, 1.0, Vector<double>(losses), model.hidden_gradient(0));
    for (index_t l = 1; l >= 0; --l) model.backward_layer({}, l, model.hidden_gradient(0));
    model.backward_embedding({}, inputs, model.hidden_gradient(0));
    return {test::values_of(losses), test::values_of(model.parameters().gradient)};
  }

  // Sequences of so many positions and these tokens, of which position p of any has the same one; means are over 20.
  Outcome run_experts(const std::vector<index_t>& tokens, index_t length, double capacity) {
    TransformerSetup setup{.model = tiny(), .sequences = std::ssize(tokens), .length = length, .key_length = length};
    setup.model.moe = {.num_experts = experts,
                       .num_experts_per_tok = 2,
                       .moe_intermediate_size = 7,
                       .shared_expert_intermediate_size = 5,
                       .router_aux_loss_coef = 3.0,
                       .router_z_loss_coef = 0.5,
                       .capacity_factor = capacity};
    Arena planning = Arena::planning();
    const Transformer<double> plan(setup, device_, planning);
    Arena arena(planning.plan());
    Transformer<double> model(setup, device_, arena);
    initialise<double>(model.table(), 5, model.parameters().master, model.parameters().layouts.master);
    std::vector<std::int32_t> input_ids, target_ids, filled;
    for (const index_t n : tokens) {
      filled.push_back(static_cast<std::int32_t>(n));
      for (index_t p = 0; p < length; ++p) {
        input_ids.push_back(p < n ? static_cast<std::int32_t>((p + n) * 7 % 23) : -1);
        target_ids.push_back(p < n ? static_cast<std::int32_t>((p + n) * 5 % 23) : -1);
      }
    }
    Kokkos::View<std::int32_t*, MemorySpace> inputs("i", input_ids.size()), targets("t", input_ids.size()),
        counts("f", filled.size());
    Kokkos::View<double*, MemorySpace> losses("l", input_ids.size());
    test::set_values(inputs, input_ids);
    test::set_values(targets, target_ids);
    test::set_values(counts, filled);
    Kokkos::deep_copy(model.parameters().gradient, 0.0);
    Kokkos::deep_copy(model.statistics(), 0.0);
    model.set_packing({}, {.tokens = counts, .step_tokens = 20});
    model.embed({}, inputs);
    model.forward({});
    model.loss_backward({}, targets, 1.0, Vector<double>(losses), model.hidden_gradient(0));
    for (index_t l = 1; l >= 0; --l) model.backward_layer({}, l, model.hidden_gradient(0));
    model.backward_embedding({}, inputs, model.hidden_gradient(0));
    return {test::values_of(losses), test::values_of(model.parameters().gradient), test::values_of(model.statistics())};
  }

  comm::Group tp_{comm::Communicator::duplicate(test::world()), test::device_transport()};
  Timers timers_;
  Device device_{timers_};
};

// Sequences of nine positions with 9, 4, 0 and 7 tokens: gradients, router losses included, and statistics are sums of
// those of the sequences by themselves, without the empty positions.
TEST_F(PackedDocuments, OfExpertsAreTheirTokens) {
  const std::vector<index_t> tokens{9, 4, 0, 7};
  for (const double capacity : {0.0, 0.8}) {
    const Outcome packed = run_experts(tokens, 9, capacity);
    Outcome apart;
    apart.gradient.resize(packed.gradient.size());
    apart.routers.resize(packed.routers.size());
    for (const index_t n : tokens) {
      if (n == 0) continue;
      const Outcome one = run_experts({n}, n, capacity);
      for (std::size_t i = 0; i < one.gradient.size(); ++i) apart.gradient[i] += one.gradient[i];
      // Load balance is stored times the positions of a sequence.
      for (std::size_t i = 0; i < one.routers.size(); ++i) {
        const bool balance = i % (2 * experts + 2) < experts;
        apart.routers[i] += one.routers[i] * (balance ? 9.0 / static_cast<double>(n) : 1.0);
      }
    }
    for (std::size_t i = 0; i < packed.gradient.size(); ++i)
      EXPECT_NEAR(packed.gradient[i], apart.gradient[i], 1e-12) << i;
    for (std::size_t i = 0; i < packed.routers.size(); ++i)
      EXPECT_NEAR(packed.routers[i], apart.routers[i], 1e-12 * (1.0 + std::abs(apart.routers[i]))) << i;
  }
}

TEST_F(PackedDocuments, AreTheSameAsOneByOne) {
  const std::vector<index_t> begins{0, 1, 8, 21}, ends{1, 8, 21, 26};
  std::vector<std::int32_t> starts;
  Outcome apart;
  for (std::size_t d = 0; d < begins.size(); ++d) {
    const index_t length = ends[d] - begins[d];
    starts.insert(starts.end(), static_cast<std::size_t>(length), static_cast<std::int32_t>(begins[d]));
    const Outcome one = run(begins[d], length, deck::DocumentMask::none, {});
    apart.losses.insert(apart.losses.end(), one.losses.begin(), one.losses.end());
    apart.gradient.resize(one.gradient.size());
    for (std::size_t i = 0; i < one.gradient.size(); ++i) apart.gradient[i] += one.gradient[i];
  }
  const Outcome packed = run(0, 26, deck::DocumentMask::block_diagonal, starts);
  for (std::size_t i = 0; i < packed.losses.size(); ++i) EXPECT_NEAR(packed.losses[i], apart.losses[i], 1e-13) << i;
  for (std::size_t i = 0; i < packed.gradient.size(); ++i) {
    EXPECT_NEAR(packed.gradient[i], apart.gradient[i], 1e-12) << i;
  }
  const Outcome whole = run(0, 26, deck::DocumentMask::none, {});
  EXPECT_GT(std::abs(whole.losses[10] - packed.losses[10]), 1e-4);
}

}  // namespace
}  // namespace nanotron::model
