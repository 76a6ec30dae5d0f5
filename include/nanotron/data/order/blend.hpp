#pragma once

// Which file a sample of a blend comes from: a pure function of the global sample index, without a table of samples.

#include <cstdint>
#include <string_view>
#include <vector>

#include "nanotron/base/types.hpp"
#include "nanotron/deck/keys/data.hpp"

namespace nanotron::data {

/// From this sample on the files have these weights.
struct BlendPart {
  index_t first_sample = 0;
  std::vector<double> weights;
};

/// The parts of data%weights and data%stages in a cut (data/order/training_stages.hpp) that begins at token t, by
/// samples from its first on: a stage from token n on begins at sample ceil(max(n - t, 0) / sequence_length) of it.
std::vector<BlendPart> blend_parts(const deck::DataConfig& data);

/// K files. A binary tree divides them in halves, [lo, hi) in [lo, mid) and [mid, hi) with mid = floor((lo + hi) / 2).
/// Of the first m samples of a part that reach a node,
///
///     left(m) = floor(P m / 2^53 + 1/2),   P = round(2^53 w_left / (w_left + w_right)),
///
/// go to the left half. P <= 2^53, so that left(m + 1) is left(m) or left(m) + 1, which says where sample m goes. Every
/// file has w n / sum(w) of the first n samples of a part, within ceil(log2 K) / 2. Exact integers up to 2^60 samples;
/// O(log K) time a sample.
class Blend {
 public:
  /// Parts are in ascending order of their first samples (equal ones allowed), the first at sample 0; each has weights
  /// of the same files, not negative, with a positive sum.
  explicit Blend(const std::vector<BlendPart>& parts);

  struct Sample {
    std::size_t file;
    index_t index;  // among the samples of this file
  };
  Sample at(index_t sample) const;

  /// How many of the samples before this one are of each file.
  std::vector<index_t> counts_before(index_t sample) const;

 private:
  struct Part {
    index_t first_sample;
    std::vector<index_t> counts;        // before first_sample, of each file
    std::vector<std::uint64_t> shares;  // P of the node that mid divides; the first is not used
  };
  const Part& part_of(index_t sample) const;

  std::size_t files_;
  std::vector<Part> parts_;
};

/// The seed of a file's order: the run's seed; for a file with a name, seed ^ XXH3-64(name), so that files of the same
/// length have different orders, independent of their position in the list.
std::uint64_t seed_of_file(std::uint64_t seed, std::string_view name);

}  // namespace nanotron::data
