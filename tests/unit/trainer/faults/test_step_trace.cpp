// ranks: 2
#include "nanotron/trainer/faults/step_trace.hpp"

#include <gtest/gtest.h>

#include "support/world.hpp"

namespace nanotron::trainer {
namespace {

using Kind = TracedEvent::Kind;

int rank_here() {
  int rank = 0;
  MPI_Comm_rank(test::world(), &rank);
  return rank;
}

// Both ranks give to operation 1 of a line, then get what the other gave. Rank 1 gives something else the second time.
ComputedStep step(bool is_second, bool is_cut = false) {
  const std::uint64_t given = is_second && rank_here() == 1 ? 8 : 7;
  std::vector<TracedEvent> events{{5, 1, Kind::gives, given}, {5, 1, Kind::arrives, 0}};
  if (is_cut) events.clear();
  return {.events = events, .results = {is_second ? std::uint64_t{2} : std::uint64_t{1}}, .is_cut = is_cut};
}

TEST(StepTrace, TheRankThatGaveSomethingElseFirstIsAtFault) {
  const StepDifference found = compare_steps(step(false), step(true), test::world());
  EXPECT_TRUE(found.exists);
  EXPECT_EQ(found.ranks, std::vector<int>{1});
  EXPECT_FALSE(compare_steps(step(false), step(false), test::world()).exists);
}

TEST(StepTrace, WhereTheCauseIsNotInItNobodyIs) {
  const StepDifference found = compare_steps(step(false, true), step(true, true), test::world());
  EXPECT_TRUE(found.exists);
  EXPECT_TRUE(found.ranks.empty());
}

}  // namespace
}  // namespace nanotron::trainer
