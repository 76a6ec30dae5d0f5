#pragma once

#include <string>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/kernels/attention/attention.hpp"

namespace nanotron::trainer {

/// Sizes of the model, batch and FLOPs of a step, and the keys that are not at their defaults. No newline at the end.
std::string model_summary(const deck::Config& config);

/// Its feed-forward block: "ffn 1408", or "2 of 8 experts of 1408 and a shared one of 512 (dropless)".
std::string feed_forward_text(const deck::Config& config);
/// A line with the losses that the block adds; empty where it adds none.
std::string feed_forward_losses_text(const deck::Config& config);

/// Attention of one head over a whole sequence.
kernels::AttentionShape one_head(const deck::Config& config);

}  // namespace nanotron::trainer
