#include "nanotron/nn/vocab/vocab_embedding.hpp"

#include "nanotron/base/types.hpp"
#include "nanotron/kernels/vocab/embedding.hpp"
#include "nn/linear/rows.hpp"

namespace nanotron::nn {

template <class T>
void VocabEmbedding<T>::forward(Device& device, Vector<const std::int32_t> tokens, Matrix<T> x) const {
  kernels::embedding_forward<T>(device, tokens, vocabulary_, table_, x, multiplier_);
}

template <class T>
void VocabEmbedding<T>::backward(Device& device, Vector<const std::int32_t> tokens, Matrix<const T> dx,
                                 const ShardGradients<T>& apart) const {
  if (apart.is_empty())
    return kernels::embedding_backward<T>(device, tokens, vocabulary_, dx, gradient_, token_segments_, multiplier_);
  const auto rows = static_cast<index_t>(gradient_.extent(0)), columns = static_cast<index_t>(gradient_.extent(1));
  for (int s = 0; s < apart.shards(); ++s) {
    const Range of = apart.tokens_of(s);
    kernels::embedding_backward<T>(device, Vector<const std::int32_t>(tokens.data() + of.begin, of.size()), vocabulary_,
                                   rows_of<const T>(dx, of), apart.of(s, rows, columns), 1, multiplier_);
  }
}

NANOTRON_INSTANTIATE_CLASS(VocabEmbedding)

template <class T>
void LearnedPositions<T>::forward(Device& device, Vector<const std::int32_t> at, Matrix<T> x) const {
  kernels::embedding_add<T>(device, at, positions_, table_, x);
}

template <class T>
void LearnedPositions<T>::backward(Device& device, Vector<const std::int32_t> at, Matrix<const T> dx) const {
  kernels::embedding_backward<T>(device, at, positions_, dx, gradient_, token_segments_);
}

NANOTRON_INSTANTIATE_CLASS(LearnedPositions)

}  // namespace nanotron::nn
