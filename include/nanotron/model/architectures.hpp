#pragma once
// Which Hugging Face architectures say what a model is.

#include <string>

#include "nanotron/deck/keys/model.hpp"

namespace nanotron::model {

/// A warning where config.json of no architecture that nanotron-convert writes can say what the resolved model is: the
/// nearest, and the values that the deck's keys would need there; else empty.
std::string unexported_text(const deck::ModelConfig& model);

}  // namespace nanotron::model
