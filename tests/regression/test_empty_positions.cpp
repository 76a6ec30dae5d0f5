// ranks: 1 2 4
// timeout: 300
// Packed documents with empty positions train a mixture of experts as the tokens alone do: losses, gradient norms and
// what the routers report, on every axis of the grid.

#include <gtest/gtest.h>

#include "support/comparison.hpp"
#include "support/drawn_decks.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = std::min<std::int64_t>(4, test::compared_steps), whole = 12, batch = 4;
constexpr double tolerance = 1e-12;

struct Case {
  const char* golden;
  std::vector<std::string> set;
};
const std::vector<Case> cases{
    {"mixtral", {}},
    {"mixtral", {"moe.capacity_factor=0.8", "data.micro_batch_size=2"}},
    {"qwen2_moe", {"parallel.recompute=full"}},
    {"qwen2_moe", {"parallel.tp=2"}},
    {"mixtral", {"parallel.tp=2", "parallel.tp_mode=reduce_scatter", "parallel.recompute=selective"}},
    {"qwen3_moe", {"parallel.pp=2", "parallel.pp_schedule=zero_bubble"}},
    {"qwen2_moe", {"parallel.cp=2", "moe.capacity_factor=0.8"}},
    {"mixtral", {"parallel.cp=2", "parallel.cp_mode=all_to_all", "parallel.ep=2"}},
    {"qwen3_moe", {"parallel.ep=2", "moe.capacity_factor=1.1", "parallel.zero_stage=1"}},
    {"mixtral", {"parallel.ep=2", "precision.reproducible=layout"}},
    {"qwen2_moe", {"parallel.cp=4", "parallel.cp_mode=all_to_all", "parallel.zero_stage=2"}},  // ranks without a token
    {"mixtral", {"parallel.ep=2", "parallel.cp=2", "parallel.tp=2", "moe.capacity_factor=0.8"}},
    {"qwen2_moe", {"parallel.pp=2", "parallel.ep=2", "data.micro_batch_size=2"}},
    {"mixtral", {"parallel.ep=4", "parallel.zero_stage=3"}},
};

class EmptyPositions : public testing::Test {
 protected:
  EmptyPositions() : folder_(test::world(), "empty_positions") {
    MPI_Comm_size(test::world(), &ranks_);
    int rank = 0;
    MPI_Comm_rank(test::world(), &rank);
    if (rank == 0) {
      std::vector<std::uint64_t> alike, mixed;
      for (std::uint64_t at = 0; at < 1300; at += whole + 1) alike.push_back(at);
      for (std::uint64_t at = 0, i = 0; at < 1300; at += 11 + i * i % 17, ++i) mixed.push_back(at);
      for (const auto& [name, starts] : {std::pair("alike.h5", alike), {"mixed.h5", mixed}}) {
        test::write_tokens(path(name), 1300, 131);
        test::write_documents(path(name), starts);
      }
    }
    MPI_Barrier(test::world());
  }
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }

  // Sequences of this length, of whole documents of a file.
  std::optional<deck::Config> config_of(const Case& c, const std::string& file, std::int64_t length) const {
    std::vector<std::string> set = c.set;
    for (const std::string& more :
         {std::string("checkpoint.resume=none"), "data.path='" + path(file) + "'",
          "data.sequence_length=" + std::to_string(length), "data.global_batch_size=" + std::to_string(batch),
          std::string("data.sequences=documents"), std::string("data.document_mask=block_diagonal")}) {
      set.push_back(more);
    }
    return test::deck_if_legal(c.golden, set, ranks_);
  }

  static void expect_alike(const test::Numbers& ours, const test::Numbers& theirs) {
    EXPECT_LT(test::worst_loss_difference(ours, theirs), tolerance);
    ASSERT_EQ(ours.routers.size(), theirs.routers.size());
    for (std::size_t i = 0; i < theirs.routers.size(); ++i) {
      const test::RouterNumbers &a = ours.routers[i], &b = theirs.routers[i];
      EXPECT_NEAR(a.load_balance, b.load_balance, tolerance * b.load_balance);
      EXPECT_NEAR(a.z, b.z, tolerance * b.z);
      EXPECT_EQ(a.dropped_share, b.dropped_share);
      EXPECT_EQ(a.busiest_share, b.busiest_share);
    }
    test::expect_same_state(ours.parameters, theirs.parameters);
  }

  test::TemporaryFolder folder_;
  int ranks_ = 1;
};

// Every document fills its sequence, or half of it.
TEST_F(EmptyPositions, AreNotThere) {
  int runs = 0;
  for (const Case& c : cases) {
    const auto with = config_of(c, "alike.h5", 22), without = config_of(c, "alike.h5", whole);
    if (!with) continue;
    SCOPED_TRACE(c.golden + testing::PrintToString(c.set));
    expect_alike(test::run_training(*with, test::world(), steps), test::serial(*without, steps));
    ++runs;
  }
  EXPECT_GE(runs, 3);
}

// Differently many in every sequence.
TEST_F(EmptyPositions, AreTheSameOnEveryGrid) {
  for (const Case& c : cases) {
    const auto config = config_of(c, "mixed.h5", 30);
    if (!config || ranks_ == 1) continue;
    SCOPED_TRACE(c.golden + testing::PrintToString(c.set));
    const test::Numbers ours = test::run_training(*config, test::world(), steps), theirs = test::serial(*config, steps);
    expect_alike(ours, theirs);
    if (config->precision.reproducible == deck::Reproducible::layout) {
      EXPECT_EQ(ours.losses, theirs.losses);
      EXPECT_EQ(ours.parameters, theirs.parameters);
    }
  }
}

// Experts' GEMMs of all rows, of which the device alone knows how many there are.
TEST_F(EmptyPositions, AreNotThereInGroupedGemms) {
  for (const Case& c : {Case{"mixtral", {}}, Case{"mixtral", {"parallel.ep=2", "moe.capacity_factor=0.8"}}}) {
    Case grouped = c;
    grouped.set.insert(grouped.set.end(), {"precision.compute=bf16", "run.expert_gemms=grouped"});
    const auto with = config_of(grouped, "alike.h5", 22), without = config_of(grouped, "alike.h5", whole);
    if (!with) continue;
    SCOPED_TRACE(testing::PrintToString(grouped.set));
    const test::Numbers ours = test::run_training(*with, test::world(), 1),
                        theirs = test::run_training(*without, test::world(), 1);
    EXPECT_NEAR(ours.losses[0], theirs.losses[0], 1e-3 * theirs.losses[0]);
    EXPECT_NEAR(ours.grad_norms[0], theirs.grad_norms[0], 1e-2 * theirs.grad_norms[0]);
    EXPECT_NEAR(ours.routers[0].load_balance, theirs.routers[0].load_balance, 1e-3);
    EXPECT_NEAR(ours.routers[0].dropped_share, theirs.routers[0].dropped_share, 0.02);
  }
}

}  // namespace
}  // namespace nanotron
