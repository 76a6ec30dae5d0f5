#pragma once

// Rows of a mixture of experts as they travel between ranks in a narrower form (parallel%ep_row_type):
//
//   bf16   each value rounded
//   fp8    E4M3 codes with a scale for each block of 1 x 128 values (DeepSeek-AI 2024, DeepSeek-V3, section 3.3):
//          amax = max |x| of the block    e = the largest with 2^e amax <= 448    code = round(2^e x)    scale = 2^-e
//
// The scale is a power of two, as that of kernels/fp8/quantise.hpp: the only error is the rounding of the codes. What
// is not finite becomes NaN. A row depends on its own values alone.

#include "nanotron/deck/keys/parallel.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

inline constexpr index_t wire_block = 128;  // values of a scale

/// Words of 8 bytes of a row of `columns` values: the codes, padded to a whole word; then for fp8 the scales, as float.
constexpr index_t wire_words(deck::ExpertRowType type, index_t columns) {
  const index_t blocks = (columns + wire_block - 1) / wire_block;
  return type == deck::ExpertRowType::bf16 ? (columns + 3) / 4 : (columns + 7) / 8 + (blocks + 1) / 2;
}

/// The form in which rows come back that are sent in form `type`.
constexpr deck::ExpertRowType returned_as(deck::ExpertRowType type) {
  return type == deck::ExpertRowType::compute ? type : deck::ExpertRowType::bf16;
}

/// Whether rows of T are packed for it; else they travel as they are.
template <class T>
constexpr bool is_packed(deck::ExpertRowType type) {
  return type == deck::ExpertRowType::fp8 || (type == deck::ExpertRowType::bf16 && !std::is_same_v<T, bf16>);
}

/// words (n, wire_words) <- row places(r) of rows for each r < n; and back. type: bf16 or fp8. Without places: row r.
template <class T>
void pack_rows(Device& device, deck::ExpertRowType type, Matrix<const T> rows, Matrix<std::uint64_t> words,
               Vector<const std::int64_t> places = {});
template <class T>
void unpack_rows(Device& device, deck::ExpertRowType type, Matrix<const std::uint64_t> words, Matrix<T> rows,
                 Vector<const std::int64_t> places = {});

}  // namespace nanotron::kernels
