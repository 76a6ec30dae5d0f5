#pragma once

// Layers that predict tokens after the next one (model/later_tokens/later_tokens.hpp) are appended to those of a model,
// and are of the kind of the last one.

#include <cstdint>

#include "nanotron/deck/keys/model.hpp"

namespace nanotron::deck {

inline std::int64_t appended_layers(const ModelConfig& model) { return model.num_nextn_predict_layers; }

inline void append_layers(ModelConfig& model, std::int64_t count) { model.num_nextn_predict_layers = count; }

/// All layers that have parameters.
inline std::int64_t stored_layers(const ModelConfig& model) { return model.num_hidden_layers + appended_layers(model); }

/// Whether what follows the last layer reads the token embedding too.
inline bool embeds_at_end(const ModelConfig& model) { return model.tie_word_embeddings || appended_layers(model) > 0; }

}  // namespace nanotron::deck
