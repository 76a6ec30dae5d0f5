#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nanotron/kernels/optim/qk_clip.hpp"
#include "nanotron/optim/optimizer.hpp"
#include "optim/optimizers.hpp"

namespace nanotron::optim {

/// A projection of queries or keys, its heads without their number of columns.
struct ClippedTensor {
  std::string name;
  kernels::HeadRows heads;
};

/// Of attention from compressed tokens: of each head, queries without and with positions; keys without them, and
/// values.
std::vector<ClippedTensor> compressed_attention_tensors(const deck::ModelConfig& model);

/// QK-clip after each update: whoever updates an element of a projection clips it. maxima: as make_weight_rule has
/// them.
template <class M>
std::unique_ptr<WeightRule<M>> make_qk_clip(const deck::Config& config, const OptimizerSetup& setup,
                                            const nn::ScoreMaxima& maxima, Arena& arena);

void check_qk_clip(const deck::Config& config, const OptimizerKind& optimizer, deck::Findings& findings);

}  // namespace nanotron::optim
