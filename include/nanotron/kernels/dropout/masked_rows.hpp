#pragma once

// A random mask on rows of the hidden states, whose elements are the channels.

#include "nanotron/kernels/dropout/random_mask.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/sequence_layout.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// Row r is the token first + r of a micro-batch, (sequences, positions of the shard). Rows after the last token are
/// padding.
struct TokenRows {
  index_t first = 0;
  SequenceShard shard{};
};

/// y = factor M x + z, and y = factor M x, rounded to T once; M: the mask divided by 1 - p. y may be z, or x.
template <class T>
void add_masked(Device& device, const RandomMask& mask, const TokenRows& tokens, double factor, MatrixRef<const T> x,
                MatrixRef<const T> z, MatrixRef<T> y);
template <class T>
void scale_masked(Device& device, const RandomMask& mask, const TokenRows& tokens, double factor, MatrixRef<const T> x,
                  MatrixRef<T> y);

}  // namespace nanotron::kernels
