#include "nanotron/model/generation/sampling.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "nanotron/base/error.hpp"
#include "nanotron/base/random.hpp"

namespace nanotron::model {
namespace {

bool likelier(const Candidate& a, const Candidate& b) {
  return a.probability > b.probability || (a.probability == b.probability && a.token < b.token);
}

std::size_t likeliest(std::span<const double> logits) {
  std::size_t best = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) {
      fail(ExitCode::numerics_error, {.what = "a logit is not a number",
                                      .where = fmt::format("token {}", i),
                                      .change = "try --compute fp32; check the checkpoint's last losses"});
    }
    if (logits[i] > logits[best]) best = i;
  }
  if (!std::isfinite(logits[best])) {
    fail(ExitCode::numerics_error, {.what = "the largest logit is not finite",
                                    .found = fmt::format("{} for token {}", logits[best], best),
                                    .change = "try --compute fp32; check the checkpoint's last losses"});
  }
  return best;
}

void normalise(std::vector<Candidate>& kept) {
  double sum = 0.0;
  for (const Candidate& c : kept) sum += c.probability;
  for (Candidate& c : kept) c.probability /= sum;
}

void keep_top_k(std::vector<Candidate>& kept, index_t k) {
  if (k <= 0 || k >= static_cast<index_t>(kept.size())) return;
  std::nth_element(kept.begin(), kept.begin() + k - 1, kept.end(), likelier);
  kept.resize(static_cast<std::size_t>(k));
  normalise(kept);
}

// Keeps the token that crosses the threshold, so at least one.
void keep_top_p(std::vector<Candidate>& kept, double p) {
  if (p >= 1.0) return;
  std::sort(kept.begin(), kept.end(), likelier);
  double sum = 0.0;
  std::size_t count = 0;
  while (count < kept.size() && (count == 0 || sum < p)) sum += kept[count++].probability;
  kept.resize(count);
  normalise(kept);
}

}  // namespace

std::vector<Candidate> candidates(std::span<const double> logits, const Sampling& sampling) {
  const std::size_t best = likeliest(logits);
  if (sampling.temperature == 0.0) return {{static_cast<std::int32_t>(best), 1.0}};
  std::vector<Candidate> kept(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    kept[i] = {static_cast<std::int32_t>(i), std::exp((logits[i] - logits[best]) / sampling.temperature)};
  }
  normalise(kept);
  keep_top_k(kept, sampling.top_k);
  keep_top_p(kept, sampling.top_p);
  std::sort(kept.begin(), kept.end(), [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
  return kept;
}

std::int32_t draw_token(std::span<const double> logits, const Sampling& sampling, std::uint32_t sample,
                        std::uint64_t position) {
  const std::vector<Candidate> kept = candidates(logits, sampling);
  // Cumulative sum in the order of ids: a rounding difference between two grids only moves the borders
  // by that much. In the order of probabilities it could exchange two tokens.
  const double u = uniform(sampling.seed, stream_id("generate"), position, sample);
  double sum = 0.0;
  for (const Candidate& c : kept) {
    sum += c.probability;
    if (u <= sum && c.probability > 0.0) return c.token;
  }
  return std::max_element(kept.begin(), kept.end(),
                          [](const Candidate& a, const Candidate& b) { return likelier(b, a); })
      ->token;
}

}  // namespace nanotron::model
