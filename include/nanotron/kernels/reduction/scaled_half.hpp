#pragma once

// fp16 with a power of two as the scale of each block, for a reduction over R ranks. With m the largest |x| of a block
// on all R ranks, the block is sent as
//
//   y = fp16(x 2^e)      e = 14 - ceil(log2 R) - floor(log2 m)
//
// so that |y| < 2^15 / R: no sum over R ranks overflows, in any order. m is scaled to 2^13 / R or more, so x keeps all
// 11 bits down to about m R 2^-28, and becomes 0 below about m R 2^-39. A block with an infinity or NaN is not scaled
// (e = 0): it stays non-finite.

#include "nanotron/base/fp16.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// Elements per block. Blocks are aligned to the end of the vector: the first one may be shorter.
inline constexpr index_t half_block = 1024;
constexpr index_t half_blocks(index_t n) { return (n + half_block - 1) / half_block; }

/// largest (half_blocks(n)) <- max |x| of each block of x (n); infinity where one is NaN. M is double or float.
template <class M>
void block_largest(Device& device, Vector<const M> x, Vector<M> largest);

/// y <- fp16(x 2^e), both (n); largest: m of each block, the max over `ranks` ranks.
template <class M>
void scale_to_half(Device& device, Vector<const M> x, Vector<const M> largest, int ranks, Vector<fp16> y);

/// x <- y 2^-e.
template <class M>
void scale_from_half(Device& device, Vector<const fp16> y, Vector<const M> largest, int ranks, Vector<M> x);

}  // namespace nanotron::kernels
