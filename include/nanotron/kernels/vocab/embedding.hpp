#pragma once

// Vocabulary-parallel table look-up: this rank holds the rows [vocabulary.begin, vocabulary.end).

#include <cstdint>

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/shard.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// tokens (n), table (vocabulary.size(), hidden), out (n, hidden) overwritten: the token's row, or
/// zeros where another rank holds it. The sum over ranks is the embedding.
template <class T>
void embedding_forward(Device& device, Vector<const std::int32_t> tokens, Range vocabulary,
                       Matrix<const T> table, Matrix<T> out);

/// out (n, hidden) += the token's row; nothing where another rank holds it. Of a second table that is looked up for the
/// same sum: learned positions.
template <class T>
void embedding_add(Device& device, Vector<const std::int32_t> tokens, Range vocabulary, Matrix<const T> table,
                   Matrix<T> out);

/// dtable(tokens(i) - begin, :) += dout(i, :) for the local tokens; the rows of one token are added
/// in the order of i, on every kind of device. With several segments of as many i each, the rows of one
/// token in each are added up first, and then in a tree (tensor/sum_order.hpp).
template <class T>
void embedding_backward(Device& device, Vector<const std::int32_t> tokens, Range vocabulary,
                        Matrix<const T> dout, Matrix<master_t<T>> dtable, index_t segments = 1);

}  // namespace nanotron::kernels
