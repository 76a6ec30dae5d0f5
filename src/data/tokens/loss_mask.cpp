#include "nanotron/data/tokens/loss_mask.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "nanotron/base/error.hpp"

namespace nanotron::data {

LossMask::LossMask(StoredArray values, const std::string& path, index_t tokens)
    : values_(std::move(values)), path_(path) {
  if (values_.size() == tokens) return;
  fail(ExitCode::data_error,
       {"/loss_mask does not match /tokens", fmt::format("{} values of uint8, one for each token", tokens),
        fmt::format("{} values", values_.size()), path_, "write it with the tokens, 1 where the loss counts"});
}

void LossMask::require_targets() const {
  if (!exists()) return;
  constexpr index_t block = 1 << 20;
  std::vector<std::uint8_t> values(static_cast<std::size_t>(std::min(block, values_.size())));
  for (index_t at = 0; at < values_.size(); at += block) {
    const std::span<std::uint8_t> here(values.data(), static_cast<std::size_t>(std::min(block, values_.size() - at)));
    read(at, here);
    if (std::ranges::any_of(here, [](std::uint8_t counts) { return counts != 0; })) return;
  }
  fail(ExitCode::data_error,
       {"/loss_mask is 0 everywhere: nothing counts in the loss", "1 for the tokens whose prediction is learned",
        fmt::format("{} zeros", values_.size()), path_, "write 1 where the loss counts, or no /loss_mask"});
}

void LossMask::read(index_t first, std::span<std::uint8_t> out) const {
  values_.for_each_piece(first, static_cast<index_t>(out.size()), [&](const StoredArray::Values& piece, index_t at) {
    std::memcpy(out.data() + at, piece.data, static_cast<std::size_t>(piece.count));
  });
}

void LossMask::apply(index_t first, std::span<std::int32_t> targets) const {
  if (!exists()) return;
  values_.for_each_piece(
      first, static_cast<index_t>(targets.size()), [&](const StoredArray::Values& piece, index_t at) {
        for (index_t i = 0; i < piece.count; ++i) {
          const auto counts = static_cast<std::uint8_t>(piece.data[i]);
          if (counts > 1)
            fail(ExitCode::data_error,
                 {"/loss_mask has values other than 0 and 1", "0 or 1",
                  fmt::format("{} at position {}", counts, first + at + i), path_, "write 1 where the loss counts"});
          if (counts == 0) targets[static_cast<std::size_t>(at + i)] = no_target;
        }
      });
}

}  // namespace nanotron::data
