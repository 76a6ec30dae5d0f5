#pragma once

// Private to the nn layer.

#include <bit>

#include "nanotron/nn/moe/moe_memory.hpp"

namespace nanotron::nn {

/// f(expert, rows) in pieces whose row counts are powers of two: GEMM libraries cache something for each shape. The
/// rows of an expert that are left are one piece if is_whole(their number).
template <class F, class IsWhole>
void for_each_piece(const ExpertRows& rows, const F& f, const IsWhole& is_whole) {
  for (std::size_t e = 0; e + 1 < rows.begin.size(); ++e) {
    for (index_t begin = rows.begin[e]; begin < rows.begin[e + 1];) {
      const index_t left = rows.begin[e + 1] - begin;
      const index_t power = static_cast<index_t>(std::bit_floor(static_cast<std::size_t>(left)));
      const Range piece{begin, begin + (is_whole(left) ? left : power)};
      f(e, piece);
      begin = piece.end;
    }
  }
}

}  // namespace nanotron::nn
