// ranks: 2 3 4 6 8
// timeout: 600
// Any two options together: grids and options are drawn so that every pair of values that the deck allows on that many
// ranks meets in some run (pairwise cover), and each run follows the serial one. CI takes a part of the runs. FP8 is
// not drawn: a code is the nearest of few, so that a sum in another order changes some, which no bar of rounding holds;
// test_fp8.cpp and test_fp8_experts.cpp compare losses.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <queue>
#include <set>

#include "nanotron/deck/expert_ranks.hpp"
#include "nanotron/deck/later_tokens.hpp"
#include "support/comparison.hpp"
#include "support/drawn_options.hpp"
#include "support/expert_runs.hpp"
#include "support/orders.hpp"
#include "support/sampling.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = test::compared_steps;
constexpr double tolerance = 1e-11;
constexpr int candidates = 400;
constexpr std::size_t runs_in_ci = test::legal_orders > 1 ? 3 : 8;

using test::axes;
using test::Choice;
using test::value_of;
using Pair = std::array<std::size_t, 4>;  // axis, value, axis, value

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

// What one rounding may do to the losses of a run whose updates divide small gradients by their own size: the run to
// follow with an eps of its norms that moves activations by about 1e-15 of themselves. Computed by all ranks, and only
// where losses are farther apart than `tolerance`.
double bar_of_losses(const deck::Config& config, const test::Numbers& ours, const test::Numbers& reference, int rank) {
  if (test::worst_loss_difference(ours, reference) < tolerance) return tolerance;
  deck::Config moved = config;
  const bool is_rms = moved.model.normalization == deck::Normalization::rms_norm;
  (is_rms ? moved.model.rms_norm_eps : moved.model.layer_norm_epsilon) *= 1.0 + 1e-10;
  return std::max(tolerance, test::worst_loss_difference(reference_of(moved, rank), reference));
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

  std::vector<Trial> legal_trials() const {
    test::DrawnChoices drawn(tokens_, ranks_, 2024);
    std::vector<Trial> legal;
    for (int i = 0; i < candidates; ++i) {
      auto [choice, config] = drawn.next();
      legal.push_back({choice, config, pairs_of(choice, config)});
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
    SCOPED_TRACE(test::text(choice));
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
      EXPECT_LT(test::worst_loss_difference(ours, reference), bar_of_losses(followed, ours, reference, rank_));
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
