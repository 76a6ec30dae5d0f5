#include "nanotron/nn/vocab/vocab_embedding.hpp"

#include "nanotron/base/types.hpp"
#include "nanotron/kernels/vocab/embedding.hpp"

namespace nanotron::nn {

template <class T>
void VocabEmbedding<T>::forward(Device& device, Vector<const std::int32_t> tokens, Matrix<T> x) const {
  kernels::embedding_forward<T>(device, tokens, vocabulary_, table_, x, multiplier_);
}

template <class T>
void VocabEmbedding<T>::backward(Device& device, Vector<const std::int32_t> tokens, Matrix<const T> dx) const {
  kernels::embedding_backward<T>(device, tokens, vocabulary_, dx, gradient_, token_segments_, multiplier_);
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
