// ranks: 2 4
// timeout: 300
// The communicators that --plan counts are those that a step makes, with the same ranks, limits and connections.

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "emulation/nccl_connections.hpp"
#include "nanotron/trainer/plan/plan.hpp"
#include "support/drawn_decks.hpp"
#include "support/trainer_run.hpp"

namespace nanotron {
namespace {

// Ranks, thread blocks; whether collectives, sends, receives are connected.
using Row = std::tuple<int, int, bool, bool, bool>;

std::vector<Row> planned_rows(const deck::Config& config, const comm::GridCoordinate& at) {
  std::vector<Row> rows;
  for (const comm::NcclPlan& p : trainer::nccl_plans_of(config, at, 8)) {
    rows.emplace_back(p.ranks, p.max_blocks, p.use.collectives, p.use.sends || p.use.exchanges,
                      p.use.receives || p.use.exchanges);
  }
  std::ranges::sort(rows);
  return rows;
}

template <class T>
void expect_the_plan(const deck::Config& config) {
  test::TrainerRun<T> run(config, test::world());
  run->train_step();
  run.device().fence();
  std::vector<Row> rows;
  for (const emulation::Connected& c : emulation::communicators()) {
    rows.emplace_back(c.ranks, c.max_blocks, c.rings || c.trees, c.sends, c.receives);
  }
  std::ranges::sort(rows);
  EXPECT_EQ(rows, planned_rows(config, run.grid().coordinate()));
  EXPECT_GE(comm::nccl_bytes_taken(), rows.size() * (2 + 3) * (2 << 20));
}

TEST(NcclPlan, IsWhatAStepMakes) {
  int ranks = 0, tried = 0;
  MPI_Comm_size(test::world(), &ranks);
  const test::TokensOfDocuments tokens("nccl_plan", 20'000);
  struct Case {
    const char* golden;
    std::vector<std::string> set;
  };
  for (const Case& c : std::vector<Case>{
           {"llama", {"parallel.pp=2", "data.micro_batch_size=1"}},
           {"llama", {"parallel.cp=2"}},
           {"llama", {"parallel.cp=2", "parallel.pp=2", "data.micro_batch_size=1", "parallel.message_blocks=2"}},
           {"llama", {"parallel.tp=2"}},
           {"llama", {"parallel.tp=2", "parallel.zero_stage=1"}},
           {"llama", {"parallel.zero_stage=3"}},
           {"llama", {"parallel.zero_stage=1", "parallel.zero_size=2"}},
           {"mixtral", {"parallel.ep=2"}},
           {"mixtral", {"parallel.ep=2", "parallel.zero_stage=1"}}}) {
    std::vector<std::string> set = c.set;
    set.emplace_back("checkpoint.resume=none");
    set.push_back("data.path='" + tokens.path() + "'");
    const std::optional<deck::Config> config = test::deck_if_legal(c.golden, set, ranks);
    if (!config) continue;
    SCOPED_TRACE(testing::PrintToString(c.set));
    with_scalar_type(config->precision.compute, [&]<class T>(std::type_identity<T>) { expect_the_plan<T>(*config); });
    ++tried;
  }
  EXPECT_GE(tried, 7);
}

}  // namespace
}  // namespace nanotron
