#pragma once

// Numbers in fp16 with a power of two in common for each block of them. Among R ranks that agree on the largest |x| of
// a block, m, it travels as
//
//   y = fp16(x 2^e)      e = 14 - ceil(log2 R) - floor(log2 m)
//
// so that |y| < 2^15 / R: no sum of R parts overflows, in whatever order it is taken. m itself is at least 2^13 / R, so
// x keeps all 11 bits down to m R 2^-28 or so, and is lost below m R 2^-39. A block that holds a number that is not
// finite is not scaled: what is not finite stays so.

#include "nanotron/base/fp16.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// Elements of a block, counted from the end of the vector: the first block may be shorter.
inline constexpr index_t half_block = 1024;
constexpr index_t half_blocks(index_t n) { return (n + half_block - 1) / half_block; }

/// largest (half_blocks(n)) <- max |x| of each block of x (n); infinity where one is not a number. M is double or float.
template <class M>
void block_largest(Device& device, Vector<const M> x, Vector<M> largest);

/// y <- x 2^e, both (n), with largest over `ranks` ranks.
template <class M>
void scale_to_half(Device& device, Vector<const M> x, Vector<const M> largest, int ranks, Vector<fp16> y);

/// x <- y 2^-e.
template <class M>
void scale_from_half(Device& device, Vector<const fp16> y, Vector<const M> largest, int ranks, Vector<M> x);

}  // namespace nanotron::kernels
