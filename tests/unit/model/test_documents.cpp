// Packed documents: losses and gradients are those of the documents by themselves.
#include <gtest/gtest.h>

#include "nanotron/model/transformer.hpp"
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

struct Outcome {
  std::vector<double> losses, gradient;
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
    model.set_documents({}, documents);
    model.embed({}, inputs);
    model.forward({});
    model.loss_backward({}, targets, 1.0, losses, model.hidden_gradient(0));
    for (index_t l = 1; l >= 0; --l) model.backward_layer({}, l, model.hidden_gradient(0));
    model.backward_embedding({}, inputs, model.hidden_gradient(0));
    return {test::values_of(losses), test::values_of(model.parameters().gradient)};
  }

  comm::Group tp_{comm::Communicator::duplicate(test::world()), test::device_transport()};
  Timers timers_;
  Device device_{timers_};
};

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
