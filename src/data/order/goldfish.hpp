#pragma once

// The goldfish loss (Hans et al. 2024, https://arxiv.org/abs/2406.10209): a run does not learn every k-th target, so
// that it cannot repeat long passages of its data word for word. Which targets are dropped depends on the h tokens
// before them alone, so that a passage loses the same ones wherever it is repeated.

#include <memory>

#include "nanotron/data/order/sequences.hpp"

namespace nanotron::data {

/// The same sequences; a target <- no_target where XXH3-64 (seed 0) of the h = data.goldfish_h ids before it in its
/// sequence (int32, little-endian) is a multiple of k = data.goldfish_k. The first h - 1 targets of a sequence count.
std::unique_ptr<Sequences> with_goldfish_loss(std::unique_ptr<Sequences> sequences, const deck::DataConfig& data);

}  // namespace nanotron::data
