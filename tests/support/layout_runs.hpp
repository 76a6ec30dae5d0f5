#pragma once

// Runs of precision%reproducible = 'layout' that must have the bits of the serial run. Grids and options are drawn; CI
// draws few for each number of ranks, from a seed that it prints.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <set>

#include "support/comparison.hpp"
#include "support/drawn_decks.hpp"
#include "support/expert_runs.hpp"
#include "support/sampling.hpp"

namespace nanotron::test {

// Bits differ at once or not at all, so few steps show as much as many.
inline const std::int64_t layout_steps = all_runs() ? compared_steps : 2;
inline const std::size_t runs_of_case = all_runs() ? 6 : 1;
inline std::size_t enough(std::size_t of_all) { return all_runs() ? of_all : std::max<std::size_t>(1, of_all / 6); }

// A deck and the sums it fixes.
struct LayoutCase {
  const char* model;
  std::vector<std::string> set;
  std::vector<int> ep{};  // numbers of ranks that may share its experts
};

// Gradients of the inputs of several micro-batches before those of weights.
inline const std::vector<std::string> two_parts{"parallel.pp=2", "parallel.pp_schedule=zero_bubble",
                                                "parallel.recompute=none"};

inline void expect_same_bits(const Tensors& ours, const Tensors& theirs) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (const auto& [name, tensor] : theirs) EXPECT_TRUE(ours.at(name) == tensor) << name;
}

class LayoutRuns : public testing::Test {
 protected:
  LayoutRuns() : tokens_("layout", 6000), random_(all_runs() ? 2026 : sampling_seed(world())) {
    MPI_Comm_size(world(), &ranks_);
    MPI_Comm_rank(world(), &rank_);
  }

  // Nothing when the deck is refused.
  std::optional<deck::Config> config_of(const LayoutCase& c, const std::vector<std::string>& grid) const {
    std::vector<std::string> set{"model.num_hidden_layers=4",   "model.tie_word_embeddings=.false.",
                                 "checkpoint.resume=none",      "checkpoint.at_end=false",
                                 "data.sequence_length=24",     "data.global_batch_size=12",
                                 "data.path=" + tokens_.path(), "precision.reproducible=layout"};
    set.insert(set.end(), c.set.begin(), c.set.end());
    set.insert(set.end(), grid.begin(), grid.end());
    return deck_if_legal(c.model, set, ranks_);
  }

  // Grids of all ranks, no two alike, all of them with what `fixed` says.
  std::vector<std::pair<std::string, deck::Config>> draw(const LayoutCase& c, const std::vector<std::string>& fixed,
                                                         std::size_t count) {
    const std::vector<std::pair<const char*, std::vector<const char*>>> axes{
        {"parallel.tp", {"1", "2", "3", "4", "6"}},
        {"parallel.cp", {"1", "2", "3", "4", "6"}},
        {"parallel.cp_mode", {"ring", "all_to_all"}},
        {"parallel.tp_mode", {"all_reduce", "reduce_scatter"}},
        {"parallel.pp", {"1", "2", "4"}},
        {"parallel.zero_stage", {"0", "1", "2", "3"}},
        {"parallel.zero_size", {"0", "2"}},
        {"parallel.pp_schedule", {"gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"}},
        {"parallel.recompute", {"none", "selective", "full"}},
        {"data.micro_batch_size", {"1", "2", "3"}}};
    std::vector<std::pair<std::string, deck::Config>> runs;
    std::set<std::string> drawn;
    for (int trial = 0; trial < 2000 && runs.size() < count; ++trial) {
      std::vector<std::string> grid{"parallel.dp=0"};
      std::string name = c.model;
      for (const auto& [key, values] : axes) {
        const std::string_view of_group(key);
        const char* const value = values[random_() % values.size()];
        grid.push_back(fmt::format("{}={}", key, value));
        name += fmt::format(" {}={}", of_group.substr(of_group.find('.') + 1), value);
      }
      grid.insert(grid.end(), fixed.begin(), fixed.end());
      if (!drawn.insert(name).second) continue;
      if (const auto config = config_of(c, grid)) runs.emplace_back(name, *config);
    }
    return runs;
  }

  // With the serial run of the same deck.
  void compare(const LayoutCase& c, const std::vector<std::string>& fixed = {}) {
    std::optional<Numbers> reference;
    for (const auto& [name, config] : draw(c, fixed, runs_of_case)) {
      const std::string run = fmt::format("{} {} {} on {} ranks, dp {}", name, fmt::join(c.set, " "),
                                          fmt::join(fixed, " "), ranks_, config.parallel.dp);
      SCOPED_TRACE(run);
      if (!reference) reference = serial(config, layout_steps);
      const Numbers ours = run_named(run, config);
      EXPECT_EQ(ours.losses, reference->losses);
      EXPECT_EQ(ours.grad_norms, reference->grad_norms);
      EXPECT_EQ(ours.z_losses, reference->z_losses);
      EXPECT_EQ(ours.hashes, reference->hashes);
      expect_same_bits(ours.parameters, reference->parameters);
      for (const auto& [name, state] : reference->states) {
        if (!state.empty()) expect_same_bits(ours.states.at(name), state);
      }
      expect_same_bits(ours.ema, reference->ema);
      // Of an expert's rows, of which the group gets as many as it chooses.
      const auto all = [&](std::uint64_t bytes) { return config.parallel.ep > 1 ? over_world(bytes) : bytes; };
      const std::uint64_t sent = all(ours.counted.tensor_parallel), foreseen = all(ours.predicted.tensor_parallel);
      if (config.model.moe.capacity_factor == 0.0) {
        EXPECT_EQ(sent, foreseen);
      } else {
        EXPECT_LE(sent, foreseen);
      }
      EXPECT_EQ(ours.counted.context_parallel, ours.predicted.context_parallel);
      EXPECT_EQ(ours.counted.data_parallel, ours.predicted.data_parallel);
      ++runs_;
      const deck::ParallelConfig& grid = config.parallel;
      if (grid.tp > 1) ++cut_[grid.tp_mode == deck::TpMode::reduce_scatter ? "tp, stream cut" : "tp, stream whole"];
      if (grid.cp > 1) ++cut_["cp"];
      if (grid.ep > 1) ++cut_[grid.ep > grid.cp ? "ep, several sequences" : "ep, one sequence"];
      if (grid.pp > 1) ++cut_["pp"];
      if (grid.dp > 1) ++cut_["dp"];
      if (testing::Test::HasFailure()) return;
    }
  }

  // GoogleTest shows no trace of a run that throws.
  Numbers run_named(const std::string& name, const deck::Config& config) const {
    try {
      return run_training(config, world(), layout_steps);
    } catch (const std::exception&) {
      if (rank_ == 0) std::printf("stopped: %s\n", name.c_str());
      throw;
    }
  }

  // Random grids; and of these pairs of tp and cp those that the ranks hold and the deck allows.
  void compare_all(const std::vector<LayoutCase>& cases, std::initializer_list<std::pair<int, int>> tp_cp) {
    for (const LayoutCase& c : cases) {
      compare(c);
      for (const auto& [tp, cp] : tp_cp) {
        if (ranks_ % (tp * cp) != 0) continue;
        const std::vector<std::string> grid{fmt::format("parallel.tp={}", tp), fmt::format("parallel.cp={}", cp)};
        if (config_of(c, grid)) compare(c, grid);
      }
    }
  }

  // On one rank: the order of 'layout' is one of many: the sums of 'run' differ from it by rounding alone, which more
  // steps amplify.
  void expect_same_training(const LayoutCase& c) const {
    SCOPED_TRACE(fmt::format("{} {}", c.model, fmt::join(c.set, " ")));
    const auto layout = config_of(c, {});
    ASSERT_TRUE(layout) << "the deck is refused";
    deck::Config run = *layout;
    run.precision.reproducible = deck::Reproducible::run;
    const Numbers ours = serial(*layout, 2), theirs = serial(run, 2);
    const auto type = run.precision.compute;
    const double bound = type == ScalarType::fp64 ? 1e-11 : type == ScalarType::fp32 ? 1e-4 : 0.05;
    EXPECT_LT(worst_loss_difference(ours, theirs), bound);
    EXPECT_NE(ours.parameters, theirs.parameters) << "the fixed order was not used";
  }

  void TearDown() override {
    if (rank_ > 0 || runs_ == 0) return;
    std::string cut;
    for (const auto& [axis, runs] : cut_) cut += fmt::format("{} {} over {}", cut.empty() ? ":" : ",", runs, axis);
    std::printf("%zu runs on %d ranks, the same bits%s\n", runs_, ranks_, cut.c_str());
  }

  TokensOfDocuments tokens_;
  int ranks_ = 1, rank_ = 0;
  std::mt19937 random_;
  std::size_t runs_ = 0;
  std::map<std::string, int> cut_;  // runs, by what they cut
};

}  // namespace nanotron::test
