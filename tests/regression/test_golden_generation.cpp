// ranks: 1 2 3
// The continuation PyTorch gives, from the same weights: tests/golden/<case>/generate.json.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "nanotron/io/checkpoint/checkpoint_reader.hpp"
#include "nanotron/model/generation/generation.hpp"
#include "nanotron/trainer/checkpoint/checkpointing.hpp"
#include "support/golden.hpp"
#include "support/orders.hpp"
#include "support/test_folder.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

template <class T>
class GoldenGeneration : public testing::Test {};

using Types = testing::Types<double, float>;
TYPED_TEST_SUITE(GoldenGeneration, Types);

template <class T>
void expect_pytorchs(const std::string& name) {
  SCOPED_TRACE(name);
  const std::string golden = (test::test_folder() / "golden" / name / "").string();
  const auto expected = nlohmann::json::parse(std::ifstream(golden + "generate.json"));
  const auto tokens = expected["tokens"].get<std::vector<std::int32_t>>();
  const auto prompt = expected["prompt"].get<std::vector<std::int32_t>>();
  const auto first_logits = expected["first_logits"].get<std::vector<double>>();

  auto reader = io::CheckpointReader::open(test::world(), golden + "step_00000000");
  comm::Group tp(comm::Communicator::duplicate(test::world()), test::device_transport());
  Timers timers;
  Device device(timers);
  const model::GenerationSetup setup{.model = reader.info().model,
                                     .capacity = static_cast<index_t>(prompt.size() + tokens.size()),
                                     .chunk = 5,
                                     .tp = &tp};
  Arena planning = Arena::planning();
  static_cast<void>(model::Generator<T>(setup, device, planning));
  Arena arena(planning.plan());
  model::Generator<T> generator(setup, device, arena);
  const auto& parameters = generator.transformer().parameters();
  reader.read(trainer::state_tensors<T>(generator.transformer().table(), parameters.layouts.master,
                                        parameters.master.data(), trainer::Part::held),
              {}, scalar_type_of<T>);

  const auto logits = generator.extend(prompt);
  const double tolerance = std::is_same_v<T, double> ? 1e-13 : 2e-6;
  ASSERT_EQ(logits.size(), first_logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(logits[i], first_logits[i], tolerance) << i;

  const auto answer = generator.generate(
      {.prompt = prompt, .new_tokens = static_cast<index_t>(tokens.size()), .sampling = {.temperature = 0.0}});
  EXPECT_EQ(answer[0], tokens);
}

TYPED_TEST(GoldenGeneration, TokensAndLogitsOfPyTorch) {
  for (const char* name : {"llama", "qwen2_moe"}) test::in_legal_orders([&] { expect_pytorchs<TypeParam>(name); });
}

TYPED_TEST(GoldenGeneration, TokensAndLogitsOfTransformers) {
  for (const std::string& name : test::golden_families()) expect_pytorchs<TypeParam>(name);
}

}  // namespace
}  // namespace nanotron
