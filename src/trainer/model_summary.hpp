#pragma once

#include <string>

#include "nanotron/deck/config.hpp"

namespace nanotron::trainer {

/// Sizes of the model, batch and FLOPs of a step, and the keys that are not at their defaults. No newline at the end.
std::string model_summary(const deck::Config& config);

}  // namespace nanotron::trainer
