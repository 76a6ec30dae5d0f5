#pragma once

#include <string>

#include "nanotron/deck/config.hpp"

namespace nanotron::trainer {

/// Sizes of the model, batch and operations of a step, and the keys that are not at their defaults, without the last line's end.
std::string model_summary(const deck::Config& config);

}  // namespace nanotron::trainer
