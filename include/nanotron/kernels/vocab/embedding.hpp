#pragma once

// Vocabulary-parallel embedding: this rank holds rows [vocabulary.begin, vocabulary.end) of the table.

#include <cstdint>

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/shard.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// tokens (n), table (vocabulary.size(), h), out (n, h) overwritten: the token's row times `multiplier`, rounded to T
/// once, or zeros where another rank holds it. The sum of out over the tp ranks is the embedding.
template <class T>
void embedding_forward(Device& device, Vector<const std::int32_t> tokens, Range vocabulary, Matrix<const T> table,
                       Matrix<T> out, double multiplier = 1.0);

/// out (n, h) += the token's row, if this rank holds it. For a second table that is added to the first: learned
/// positions.
template <class T>
void embedding_add(Device& device, Vector<const std::int32_t> tokens, Range vocabulary, Matrix<const T> table,
                   Matrix<T> out);

/// dtable(tokens(i) - begin, :) += multiplier dout(i, :) for tokens in `vocabulary`; the rows of one token are added
/// in the order of i, on host and GPU. With several segments (n / segments tokens each), the rows of one
/// token are added in order within a segment, and the segments in a tree (tensor/sum_order.hpp).
template <class T>
void embedding_backward(Device& device, Vector<const std::int32_t> tokens, Range vocabulary, Matrix<const T> dout,
                        Matrix<master_t<T>> dtable, index_t segments = 1, double multiplier = 1.0);

}  // namespace nanotron::kernels
