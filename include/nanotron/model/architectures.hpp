#pragma once
// Which Hugging Face architectures can describe a model.

#include <string>

#include "nanotron/deck/keys/model.hpp"

namespace nanotron::model {

/// A warning if no architecture that nanotron-convert writes can describe the resolved model in config.json: the
/// nearest one, and the values of the deck's keys that it would need; else empty.
std::string unexported_text(const deck::ModelConfig& model);

}  // namespace nanotron::model
