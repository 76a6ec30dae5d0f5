#pragma once

// What the deck says of a step, in the types of those that carry it out.

#include "nanotron/deck/config.hpp"
#include "nanotron/kernels/attention/attention.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/sequence_layout.hpp"

namespace nanotron::trainer {

/// How each sequence is sharded over the context-parallel group.
inline SequenceLayout sequence_layout(const deck::Config& config) {
  return {context_degrees(config), config.data.sequence_length};
}

/// fixed_order with reproducible = 'layout', else library.
inline GemmMode gemm_mode_of(const deck::Config& config) {
  return config.precision.reproducible == deck::Reproducible::layout ? GemmMode::fixed_order : GemmMode::library;
}

/// Whether bad steps are computed again: one of the deck's keys for that is set, and the strategy of the reduction
/// keeps no state between steps (PowerSGD does).
bool computes_bad_steps_again(const deck::Config& config);

/// deterministic with reproducible = 'run', and where bad steps are computed again. (With 'layout' GEMMs in a fixed
/// order run attention.)
kernels::BackwardAlgorithm attention_backward_of(const deck::Config& config);

/// How many consecutive sequences of a global batch one dp rank receives at a time.
index_t neighbouring_sequences(const deck::Config& config);

/// Token positions of a global batch, the largest.
inline index_t tokens_per_step(const deck::Config& config) {
  return config.data.global_batch_size * config.data.sequence_length;
}

}  // namespace nanotron::trainer
