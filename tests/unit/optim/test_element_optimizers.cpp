// ranks: 1
// Optimizers of one element besides AdamW: updates follow reference implementations in fp64 and fp32; states in bf16
// are neighbours of those in fp32; nothing changes where the device decided to skip.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "nanotron/deck/config.hpp"
#include "nanotron/optim/optimizer.hpp"
#include "unit/kernels/kernel_test.hpp"
#include "unit/kernels/optim/scalars.hpp"
#include "unit/optim/state_values.hpp"

namespace nanotron::optim {
namespace {

constexpr double rate = 1e-2, gradient_scale = 0.5;
using States = std::vector<double>;

// p, g, states of one element; its weight decay and the number of the update.
using Reference = std::function<void(double& p, double g, States& s, double decay, std::int64_t t)>;

struct Kind {
  std::string name;
  std::size_t states;
  Reference reference;
  bool in_bf16 = true;
};

void ademamix(double& p, double g, States& s, double decay, std::int64_t t) {
  const deck::OptimizerConfig c;
  s[0] = c.beta1 * s[0] + (1.0 - c.beta1) * g;
  s[1] = c.beta3 * s[1] + (1.0 - c.beta3) * g;
  s[2] = c.beta2 * s[2] + (1.0 - c.beta2) * g * g;
  const double n = static_cast<double>(t), direction = s[0] / (1.0 - std::pow(c.beta1, n)) + c.alpha * s[1];
  p -= rate * (direction / (std::sqrt(s[2]) / std::sqrt(1.0 - std::pow(c.beta2, n)) + c.eps) + decay * p);
}

void lion(double& p, double g, States& s, double decay, std::int64_t) {
  const deck::OptimizerConfig c;
  const double direction = c.beta1 * s[0] + (1.0 - c.beta1) * g;
  p -= rate * ((direction > 0.0 ? 1.0 : direction < 0.0 ? -1.0 : 0.0) + decay * p);
  s[0] = c.beta2 * s[0] + (1.0 - c.beta2) * g;
}

// x, z, v; the rates of all updates are equal.
void schedule_free(double& y, double g, States& s, double decay, std::int64_t t) {
  const deck::OptimizerConfig c;
  const double n = static_cast<double>(t), share = 1.0 / n;
  if (t == 1) s[0] = s[1] = y;
  s[2] = c.beta2 * s[2] + (1.0 - c.beta2) * g * g;
  s[1] -= rate * (g / (std::sqrt(s[2] / (1.0 - std::pow(c.beta2, n))) + c.eps) + decay * y);
  s[0] = (1.0 - share) * s[0] + share * s[1];
  y = (1.0 - c.beta1) * s[1] + c.beta1 * s[0];
}

// Without estimates of the curvature.
void sophia(double& p, double g, States& s, double decay, std::int64_t) {
  const deck::OptimizerConfig c;
  p *= 1.0 - rate * decay;
  s[0] = c.beta1 * s[0] + (1.0 - c.beta1) * g;
  p -= rate * std::copysign(std::min(std::abs(s[0]) / (c.rho * s[1] + 1e-15), 1.0), s[0]);
}

const std::vector<Kind> kinds{{"ademamix", 3, ademamix},
                              {"lion", 1, lion},
                              {"schedule_free_adamw", 3, schedule_free, false},
                              {"sophia", 2, sophia}};

// An optimizer of a small model on one rank, with weights and gradients.
template <class M>
class Trial {
 public:
  explicit Trial(const std::string& name, deck::MomentType moments = deck::MomentType::master) {
    config_.model = {.hidden_size = 8, .num_hidden_layers = 2, .num_attention_heads = 2};
    config_.model.num_key_value_heads = 1, config_.model.head_dim = 4, config_.model.intermediate_size = 12;
    config_.model.vocab_size = 19;
    config_.optimizer.name = name;
    config_.precision.moments = moments;
    config_.schedule.kind = deck::ScheduleKind::constant;
    table = model::make_parameter_table(config_.model);
    layouts_ = model::parameter_layouts(table, {}, model::ComputeWeights::master);
    Arena planning = Arena::planning();
    make_optimizer<M>(config_, {.table = table, .layouts = layouts_, .sharding = {}}, planning);
    arena_.emplace(planning.plan());
    optimizer = make_optimizer<M>(config_, {.table = table, .layouts = layouts_, .sharding = {}}, *arena_);
    p = test::Array<M>::random(table.size, 1);
  }
  void update(const test::Array<M>& g, const test::Scalars& scalars) {
    optimizer->update(device_, {p.vector()}, g.read(), rate, scalars.read());
    device_.fence();
    optimizer->set_steps(optimizer->steps() + 1);
  }
  std::vector<std::vector<double>> states() const { return test::state_values<M>(optimizer->moments()); }

  model::ParameterTable table;
  std::unique_ptr<Optimizer<M>> optimizer;
  test::Array<M> p{1};

 private:
  deck::Config config_;
  nn::ParameterLayouts layouts_;
  std::optional<Arena> arena_;
  Timers timers_;
  Device device_{timers_};
};

template <class M>
class ElementOptimizers : public testing::Test {};
using MasterTypes = testing::Types<double, float>;
TYPED_TEST_SUITE(ElementOptimizers, MasterTypes);

TYPED_TEST(ElementOptimizers, FollowTheReference) {
  using M = TypeParam;
  constexpr int updates = 20;
  for (const Kind& kind : kinds) {
    Trial<M> ours(kind.name);
    std::vector<double> p(ours.p.host.begin(), ours.p.host.end());
    std::vector<States> s(p.size(), States(kind.states, 0.0));
    std::vector<double> decay(p.size(), 0.0);
    for (const auto& range : model::update_ranges(ours.table)) {
      for (index_t i = range.range.begin; i < range.range.end; ++i)
        decay[static_cast<std::size_t>(i)] = range.decays ? deck::OptimizerConfig().weight_decay : 0.0;
    }
    for (int t = 1; t <= updates; ++t) {
      const auto g = test::Array<M>::random(ours.table.size, 100 + static_cast<unsigned>(t), 0.1);
      ours.update(g, test::Scalars::scaled(gradient_scale));
      for (std::size_t i = 0; i < p.size(); ++i)
        kind.reference(p[i], gradient_scale * static_cast<double>(g.host[i]), s[i], decay[i], t);
    }
    ours.p.pull();
    // About 5 roundings an update of p and of each state; p changes by some rates an update.
    test::expect_close(ours.p.host, p, updates * 25 * test::unit_roundoff<M>());
    const auto states = ours.states();
    ASSERT_EQ(states.size(), kind.states);
    for (std::size_t j = 0; j < kind.states; ++j) {
      for (std::size_t i = 0; i < p.size(); ++i)
        ASSERT_NEAR(states[j][i], s[i][j], updates * 5 * test::unit_roundoff<M>());
    }
  }
}

TYPED_TEST(ElementOptimizers, SkipWhatTheDeviceDecidedToSkip) {
  using M = TypeParam;
  for (const Kind& kind : kinds) {
    Trial<M> ours(kind.name);
    ours.update(test::Array<M>(ours.table.size, INFINITY), test::Scalars::skipped());
    EXPECT_TRUE(test::is_unchanged(ours.p));
    for (const std::vector<double>& state : ours.states()) EXPECT_EQ(state, std::vector<double>(state.size(), 0.0));
  }
}

// Of one update: states are rounded behind it.
TEST(ElementOptimizersWithBf16States, RoundNothingButTheStates) {
  for (const Kind& kind : kinds) {
    if (!kind.in_bf16) continue;
    Trial<float> rounded(kind.name, deck::MomentType::bf16), exact(kind.name);
    const auto g = test::Array<float>::random(exact.table.size, 9);
    rounded.update(g, test::Scalars::scaled(gradient_scale));
    exact.update(g, test::Scalars::scaled(gradient_scale));
    rounded.p.pull(), exact.p.pull();
    for (const nn::ParameterSpec& spec : exact.table.specs) {
      const auto at = static_cast<std::size_t>(spec.offset);
      EXPECT_EQ(rounded.p.host[at], exact.p.host[at]) << spec.name;
    }
    const auto stored = rounded.states(), whole = exact.states();
    for (std::size_t j = 0; j < kind.states; ++j) {
      index_t up = 0, moved = 0;
      for (std::size_t i = 0; i < whole[j].size(); ++i) {
        if (stored[j][i] == 0.0) continue;  // between the tensors
        ASSERT_LT(std::abs(stored[j][i] - whole[j][i]), std::ldexp(std::abs(whole[j][i]), -7)) << j << " " << i;
        moved += stored[j][i] != whole[j][i];
        up += std::abs(stored[j][i]) > std::abs(whole[j][i]);
      }
      if (std::ranges::count(whole[j], 0.0) == std::ssize(whole[j])) continue;  // Sophia's curvature, not estimated yet
      EXPECT_NEAR(static_cast<double>(up) / static_cast<double>(moved), 0.5, 0.1);
    }
  }
}

}  // namespace
}  // namespace nanotron::optim
