#pragma once

// Attention and feed-forward network side by side. Private to the model layer.

#include "nanotron/model/layers/decoder_layer.hpp"

namespace nanotron::model::detail {

/// region must outlive it.
template <class T>
std::unique_ptr<const DecoderLayer<T>> make_parallel_layer(const LayerLayout& layout, LayerParts<T> parts,
                                                           nn::TensorParallelRegion<T>& region);

}  // namespace nanotron::model::detail
