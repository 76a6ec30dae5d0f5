// ranks: 1
// How many decks precision%reproducible = 'layout' admits: random points of all options (support/drawn_options.hpp)
// that are legal without it, on 2, 3, 4, 6 and 8 ranks, each with shards that suit its grid if some do. Prints what
// refuses the others, by frequency.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <regex>

#include "support/drawn_options.hpp"
#include "support/sampling.hpp"

namespace nanotron {
namespace {

constexpr int points = 129;
constexpr int max_refused = 6;
constexpr int counts_of_ranks[] = {2, 3, 4, 6, 8};

struct Outcome {
  std::vector<std::string> errors;  // without the numbers
  bool is_set_back = false;         // tp_mode or expert_tp, to the values with which the mode has the same bits
};

Outcome outcome_of(const std::string& golden, const std::vector<std::string>& set, int ranks) {
  try {
    deck::Config config = trainer::read_deck((test::test_folder() / "golden" / golden / "input.deck").string(), set);
    trainer::resolve(config, ranks);
    const auto asks = [&](const char* key) { return std::ranges::find(set, key) != set.end(); };
    const deck::ParallelConfig& p = config.parallel;
    return {{},
            p.tp > 1 && ((asks("parallel.tp_mode=reduce_scatter") && p.tp_mode == deck::TpMode::all_reduce) ||
                         (asks("parallel.expert_tp=1") && p.expert_tp == 0))};
  } catch (const Error& e) {
    std::vector<std::string> errors;
    std::istringstream lines(e.what());
    for (std::string line; std::getline(lines, line);) {
      if (const auto at = line.find("error: "); at != std::string::npos)
        errors.push_back(std::regex_replace(line.substr(at + 7), std::regex("[0-9]+"), "N"));
    }
    if (errors.empty()) errors.emplace_back(e.what());
    return {errors};
  }
}

// Errors of shards that do not suit a grid say nothing of what the deck asks for.
bool is_of_degree(const std::string& error) { return error.find("splits sums differently") != std::string::npos; }

// Of all shard counts, that with the fewest errors, if some suit the grid of these; of those without errors one that
// takes the deck as it is.
Outcome best_outcome(const std::string& golden, const std::vector<std::string>& set, int ranks) {
  Outcome best;
  bool is_admitted = false;
  std::pair<std::ptrdiff_t, std::size_t> least{std::numeric_limits<std::ptrdiff_t>::max(), 0};
  for (const int tensor : {0, 1, 2, 3, 4, 6, 8}) {
    for (const int context : {1, 2, 3, 4, 6, 8, 12}) {
      std::vector<std::string> with = set;
      with.push_back(fmt::format("precision.tensor_shards={}", tensor));
      with.push_back(fmt::format("precision.context_shards={}", context));
      Outcome outcome = outcome_of(golden, with, ranks);
      if (outcome.errors.empty() && !outcome.is_set_back) return outcome;
      const std::pair cost(std::ranges::count_if(outcome.errors, is_of_degree), outcome.errors.size());
      if (is_admitted || (cost >= least && !outcome.errors.empty())) continue;
      is_admitted = outcome.errors.empty();
      least = cost;
      best = std::move(outcome);
    }
  }
  return best;
}

TEST(LayoutAdmission, OfRandomDecks) {
  const test::TokensOfDocuments tokens("layout_admission", 4000);
  const unsigned seed = 2026;
  std::map<std::string, int> reasons, alone;
  int refused = 0, set_back = 0;
  for (int i = 0; i < points; ++i) {
    const int ranks = counts_of_ranks[i % 5];
    test::DrawnChoices drawn(tokens, ranks, seed + static_cast<unsigned>(i));
    const auto [choice, config] = drawn.next();
    std::vector<std::string> set = test::keys_of(choice, tokens);
    set.emplace_back("precision.reproducible=layout");
    const auto [errors, is_set_back] = best_outcome(test::axes.back().values[choice.back()], set, ranks);
    set_back += is_set_back ? 1 : 0;
    if (errors.empty()) continue;
    ++refused;
    for (const std::string& e : errors) ++reasons[e];
    if (errors.size() == 1) ++alone[errors[0]];
    if (std::getenv("NANOTRON_SHOW") != nullptr)
      std::printf("POINT %d ranks %d: %s\n   %s\n", i, ranks, test::text(choice).c_str(),
                  fmt::format("{}", fmt::join(errors, "\n   ")).c_str());
  }
  std::printf("seed %u: %d of %d points refused, %d others with tp_mode or expert_tp set by the mode\n", seed, refused,
              points, set_back);
  std::vector<std::pair<int, std::string>> table;
  for (const auto& [reason, count] : reasons) table.emplace_back(count, reason);
  std::sort(table.rbegin(), table.rend());
  for (const auto& [count, reason] : table) std::printf("%4d (%d alone)  %s\n", count, alone[reason], reason.c_str());
  EXPECT_LE(refused, max_refused);
}

}  // namespace
}  // namespace nanotron
