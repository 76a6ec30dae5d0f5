// ranks: 1 2 4
// timeout: 600
// The update of a step that is not finite is queued before anyone knows, and skipped: it changes no bit of weights,
// their copies and moments, and does not count. The next finite step goes on.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "nanotron/trainer/faults/first_nonfinite.hpp"
#include "support/device_values.hpp"
#include "support/drawn_decks.hpp"
#include "support/trainer_run.hpp"

namespace nanotron {
namespace {

struct Case {
  const char* golden;
  std::vector<std::string> set;
};
const std::vector<Case> cases{
    {"llama", {"precision.compute=fp32", "optimizer.ema_decay=0.9"}},
    {"llama", {"precision.compute=fp64", "optimizer.clip_grad_norm=0"}},
    {"llama", {"precision.compute=bf16", "precision.moments=bf16"}},
    {"llama", {"precision.compute=fp32", "optimizer.name=muon"}},
    {"llama", {"precision.compute=fp32", "optimizer.name=soap", "optimizer.precondition_every=1"}},
    {"llama", {"precision.compute=bf16", "optimizer.name=soap", "precision.moments=bf16", "parallel.zero_stage=1"}},
    {"llama", {"precision.compute=fp8"}},
    {"llama", {"precision.compute=bf16", "parallel.zero_stage=1"}},
    {"llama", {"precision.compute=bf16", "parallel.zero_stage=2", "optimizer.name=muon"}},
    {"llama", {"precision.compute=fp32", "parallel.zero_stage=3"}},
    {"llama", {"precision.compute=bf16", "optimizer.name=muon", "optimizer.qk_clip=0.01"}},
    {"qwen2", {"precision.compute=bf16", "parallel.tp=2"}},
    {"llama", {"precision.compute=fp32", "parallel.pp=2", "data.micro_batch_size=1"}},
    {"mixtral", {"precision.compute=bf16"}},
    {"mixtral", {"precision.compute=fp32", "parallel.ep=2"}},
    {"llama", {"precision.compute=fp32", "precision.reproducible=layout"}},
    {"llama", {"precision.compute=fp32", "parallel.gradient_compression=powersgd"}},
};

template <class Bits>
void append(std::vector<std::byte>& all, const Bits& values) {
  const auto* const first = reinterpret_cast<const std::byte*>(values.data());
  all.insert(all.end(), first, first + values.size() * sizeof(values[0]));
}

// Of the master weights, their copy, the moments and the average of this rank.
template <class T>
std::vector<std::byte> bits_of(trainer::TrainingState<T>& state) {
  std::vector<std::byte> all;
  append(all, test::values_of(state.model.parameters().master));
  append(all, test::values_of(state.model.compute_copy()));
  for (const auto& moment : state.moments()) {
    std::visit([&](const auto& values) { append(all, test::values_of(values)); }, moment.values);
  }
  return all;
}

// Of the flat buffers.
std::string first_parameter(const model::ParameterTable& table) {
  for (const nn::ParameterSpec& spec : table.specs) {
    if (spec.local_layers() > 0 && spec.offset == 0) return spec.name + (spec.is_stacked ? ", layer 0" : "");
  }
  return "none";
}

// Sets the first element that this rank owns of a layer's gradient, if it has one.
template <class T>
void spoil_gradient(trainer::TrainingState<T>& state, const std::string& name, index_t layer) {
  const model::ParameterTable& table = state.model.table();
  const nn::ParameterSpec& spec = table[name];
  for (index_t l = 0; l < spec.local_layers(); ++l) {
    if (spec.layer_numbers[static_cast<std::size_t>(l)] != layer) continue;
    const Range flat{spec.offset_of(l), spec.offset_of(l) + spec.local_size()};
    for (const Range& owned :
         optim::owned_gradient_ranges(table, state.model.parameters().layouts, state.sharding, flat)) {
      test::set_value(state.model.parameters().gradient, owned.begin, std::numeric_limits<master_t<T>>::quiet_NaN());
    }
  }
}

// Backward goes from the last layer to the first, and what a layer spoils is spoiled in all before it.
template <class T>
void expect_the_first_gradient(const deck::Config& config) {
  test::TrainerRun<T> run(config, test::world());
  run->train_step();
  trainer::TrainingState<T>& state = run->state();
  const auto found = [&] {
    return trainer::first_nonfinite(run.device(), run.grid(), state,
                                    trainer::sequence_layout(config)[run.grid().cp_rank()], run.training(), 0);
  };
  EXPECT_EQ(found(), "none");
  const std::string name = "model/layers/self_attn/o_proj/weight";
  for (const index_t layer : {0, 1}) {
    spoil_gradient(state, name, layer);
    EXPECT_TRUE(found().starts_with(fmt::format("gradient of {}, layer {}, rank ", name, layer))) << found();
  }
}

template <class T>
void expect_a_skipped_update(const deck::Config& config) {
  test::TrainerRun<T> run(config, test::world());
  EXPECT_TRUE(run->train_step().updated);
  EXPECT_TRUE(run->train_step().updated);
  trainer::TrainingState<T>& state = run->state();
  EXPECT_EQ(state.optimizer->steps(), 2);

  // The first element is that of a norm's weight, which is replicated.
  const Vector<master_t<T>> weights = state.model.parameters().master;
  const master_t<T> kept = test::value_at(weights, 0);
  test::set_value(weights, 0, std::numeric_limits<master_t<T>>::infinity());
  state.model.refresh_compute_weights();
  const std::vector<std::byte> before = bits_of(state);
  const trainer::StepResult bad = run->train_step();
  EXPECT_FALSE(bad.updated);
  EXPECT_FALSE(std::isfinite(bad.loss) && std::isfinite(bad.grad_norm));
  EXPECT_EQ(bad.first_nonfinite, "parameter " + first_parameter(state.model.table()) + ", rank 0");
  EXPECT_TRUE(bits_of(run->state()) == before);
  EXPECT_EQ(state.optimizer->steps(), 2);
  EXPECT_EQ(run->step(), 3);

  test::set_value(weights, 0, kept);
  state.model.refresh_compute_weights();
  const trainer::StepResult good = run->train_step();
  EXPECT_TRUE(good.updated && std::isfinite(good.loss) && std::isfinite(good.grad_norm));
  EXPECT_EQ(run->state().optimizer->steps(), 3);
  EXPECT_FALSE(bits_of(run->state()) == before);
}

TEST(SkippedUpdates, ChangeNoBitAndDoNotCount) {
  int ranks = 0, tried = 0;
  MPI_Comm_size(test::world(), &ranks);
  const test::TokensOfDocuments tokens("skipped_updates", 60'000);
  for (const Case& c : cases) {
    std::vector<std::string> set = c.set;
    for (const char* key : {"checkpoint.resume=none", "run.max_nonfinite_steps=1"}) set.emplace_back(key);
    set.push_back("data.path='" + tokens.path() + "'");
    const std::optional<deck::Config> config = test::deck_if_legal(c.golden, set, ranks);
    if (!config) continue;
    SCOPED_TRACE(std::string(c.golden) + " " + testing::PrintToString(c.set));
    with_scalar_type(config->precision.compute, [&]<class T>(std::type_identity<T>) {
      expect_a_skipped_update<T>(*config);
      expect_the_first_gradient<T>(*config);
    });
    ++tried;
  }
  EXPECT_GE(tried, 1);
}

}  // namespace
}  // namespace nanotron
