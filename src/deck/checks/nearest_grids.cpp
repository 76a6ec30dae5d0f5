#include "nearest_grids.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "nanotron/deck/config.hpp"

namespace nanotron::deck::detail {
namespace {

constexpr std::size_t shown = 3;
constexpr std::size_t tried = 20000;  // a number with more ordered factorisations into four is no machine's

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> found;
  for (std::int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    found.push_back(d);
    if (d != n / d) found.push_back(n / d);
  }
  return found;
}

double distance(std::int64_t degree, std::int64_t wish) {
  return wish == 0 ? 0.0 : std::fabs(std::log2(static_cast<double>(degree) / static_cast<double>(wish)));
}

struct Grid {
  std::int64_t dp, tp, pp, cp;
};

std::vector<Grid> grids_of(std::int64_t ranks, const ParallelConfig& wish) {
  std::vector<Grid> grids;
  for (const std::int64_t tp : divisors(ranks)) {
    for (const std::int64_t pp : divisors(ranks / tp)) {
      for (const std::int64_t cp : divisors(ranks / tp / pp)) grids.push_back({ranks / tp / pp / cp, tp, pp, cp});
    }
  }
  const auto far = [&](const Grid& g) {
    return distance(g.dp, wish.dp) + distance(g.tp, wish.tp) + distance(g.pp, wish.pp) + distance(g.cp, wish.cp);
  };
  std::ranges::stable_sort(grids, [&](const Grid& a, const Grid& b) {
    return std::tuple(far(a), a.pp * a.cp, a.tp) < std::tuple(far(b), b.pp * b.cp, b.tp);
  });
  if (grids.size() > tried) grids.resize(tried);
  return grids;
}

bool is_legal(Config config, const Grid& grid, Features features) {
  ParallelConfig& p = config.parallel;
  p.dp = grid.dp;
  p.tp = grid.tp;
  p.pp = grid.pp;
  p.cp = grid.cp;
  return grid_is_legal(config, features);
}

std::string text(const Grid& g) {
  std::string out = "dp = " + std::to_string(g.dp) + ", tp = " + std::to_string(g.tp);
  if (g.pp > 1) out += ", pp = " + std::to_string(g.pp);
  if (g.cp > 1) out += ", cp = " + std::to_string(g.cp);
  return out;
}

}  // namespace

bool grid_is_legal(const Config& config, Features features) {
  Origin unknown;
  unknown.sources.emplace_back("deck", "");
  Findings findings(unknown);
  for (const Feature& feature : features) feature.check(config, findings);
  return findings.errors() == 0;
}

std::string nearest_grids(const Config& config, std::int64_t ranks, Features features) {
  std::string out;
  std::size_t found = 0;
  for (const Grid& grid : grids_of(ranks, config.parallel)) {
    if (!is_legal(config, grid, features)) continue;
    out += (out.empty() ? "" : "; ") + text(grid);
    if (++found == shown) break;
  }
  return out;
}

}  // namespace nanotron::deck::detail
