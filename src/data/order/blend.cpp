#include "nanotron/data/order/blend.hpp"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/blend_stages.hpp"

namespace nanotron::data {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr int share_bits = 53;

std::uint64_t share(double left, double right) {
  return left + right > 0.0 ? static_cast<std::uint64_t>(std::llround(std::ldexp(left / (left + right), share_bits)))
                            : 0;
}

index_t left_count(std::uint64_t share, index_t samples) {
  return static_cast<index_t>((Wide{share} * static_cast<Wide>(samples) + (Wide{1} << (share_bits - 1))) >> share_bits);
}

// Of [lo, hi), and all below.
void set_shares(const std::vector<double>& weights, std::size_t lo, std::size_t hi,
                std::vector<std::uint64_t>& shares) {
  if (hi - lo < 2) return;
  const std::size_t mid = (lo + hi) / 2;
  const auto sum = [&](std::size_t a, std::size_t b) {
    return std::accumulate(weights.begin() + static_cast<std::ptrdiff_t>(a),
                           weights.begin() + static_cast<std::ptrdiff_t>(b), 0.0);
  };
  shares[mid] = share(sum(lo, mid), sum(mid, hi));
  set_shares(weights, lo, mid, shares);
  set_shares(weights, mid, hi, shares);
}

void add_counts(const std::vector<std::uint64_t>& shares, std::size_t lo, std::size_t hi, index_t samples,
                std::vector<index_t>& counts) {
  if (hi - lo == 1) {
    counts[lo] += samples;
    return;
  }
  const std::size_t mid = (lo + hi) / 2;
  const index_t left = left_count(shares[mid], samples);
  add_counts(shares, lo, mid, left, counts);
  add_counts(shares, mid, hi, samples - left, counts);
}

}  // namespace

std::vector<BlendPart> blend_parts(const deck::DataConfig& data) {
  std::vector<BlendPart> parts;
  for (const deck::BlendStage& stage : deck::blend_stages(data)) {
    const std::int64_t tokens = stage.from_token - data.cut.first_token;
    if (tokens <= 0) parts.clear();
    parts.push_back({tokens <= 0 ? 0 : (tokens + data.sequence_length - 1) / data.sequence_length, stage.weights});
  }
  return parts;
}

Blend::Blend(const std::vector<BlendPart>& parts) : files_(parts.at(0).weights.size()) {
  NANOTRON_REQUIRE(files_ > 0 && parts.front().first_sample == 0, "{} files, first sample {}", files_,
                   parts.front().first_sample);
  for (const BlendPart& part : parts) {
    Part next{part.first_sample, std::vector<index_t>(files_), std::vector<std::uint64_t>(files_)};
    NANOTRON_REQUIRE(part.weights.size() == files_, "{} weights of {} files", part.weights.size(), files_);
    set_shares(part.weights, 0, files_, next.shares);
    if (!parts_.empty()) {
      const Part& last = parts_.back();
      NANOTRON_REQUIRE(part.first_sample >= last.first_sample, "sample {} after {}", part.first_sample,
                       last.first_sample);
      next.counts = last.counts;
      add_counts(last.shares, 0, files_, part.first_sample - last.first_sample, next.counts);
    }
    parts_.push_back(std::move(next));
  }
}

const Blend::Part& Blend::part_of(index_t sample) const {
  const auto next = std::ranges::upper_bound(parts_, sample, {}, &Part::first_sample);
  return *(next - 1);
}

Blend::Sample Blend::at(index_t sample) const {
  const Part& part = part_of(sample);
  std::size_t lo = 0, hi = files_;
  index_t index = sample - part.first_sample;
  while (hi - lo > 1) {
    const std::size_t mid = (lo + hi) / 2;
    const index_t left = left_count(part.shares[mid], index);
    if (left_count(part.shares[mid], index + 1) > left) {
      hi = mid;
      index = left;
    } else {
      lo = mid;
      index -= left;
    }
  }
  return {lo, part.counts[lo] + index};
}

std::vector<index_t> Blend::counts_before(index_t sample) const {
  const Part& part = part_of(sample);
  std::vector<index_t> counts = part.counts;
  add_counts(part.shares, 0, files_, sample - part.first_sample, counts);
  return counts;
}

std::uint64_t seed_of_file(std::uint64_t seed, std::string_view name) {
  return name.empty() ? seed : seed ^ XXH3_64bits(name.data(), name.size());
}

}  // namespace nanotron::data
