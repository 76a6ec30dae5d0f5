#pragma once

// /loss_mask of a token file: which tokens count in the loss when they are predicted.

#include <cstdint>
#include <span>
#include <string>

#include "nanotron/base/types.hpp"
#include "nanotron/data/files/stored_array.hpp"

namespace nanotron::data {

/// Target of a position without a target; the loss ignores it.
inline constexpr std::int32_t no_target = -1;

/// uint8, one for each of /tokens. 1: the loss of predicting this token counts; 0: it is ignored. Errors are those of
/// StoredArray.
class LossMask {
 public:
  LossMask() = default;  // of a file without one: every token counts
  LossMask(StoredArray values, const std::string& path, index_t tokens);

  bool exists() const { return values_.exists(); }
  /// targets: tokens [first, first + size) of the file. Those that do not count <- no_target.
  void apply(index_t first, std::span<std::int32_t> targets) const;
  /// Error(data_error) if the mask exists and is 0 everywhere. Reads up to the first nonzero value.
  void require_targets() const;
  /// out <- the mask of tokens [first, first + size). Only if it exists.
  void read(index_t first, std::span<std::uint8_t> out) const;

  StoredArray& values() { return values_; }
  const StoredArray& values() const { return values_; }

 private:
  StoredArray values_;
  std::string path_;
};

}  // namespace nanotron::data
