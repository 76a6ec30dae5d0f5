#pragma once

// Adapters of low rank beside frozen linear layers (LoRA, Hu et al. 2021), as &lora asks for them. Their GEMMs:
// nn/linear/lora_linear.hpp; their parameters: src/model/adapters/adapter_specs.hpp. A layer W (out, in) gets
//
//   W is              lora_A (r, in)           lora_B (out, r)          partial sums over tensor-parallel ranks
//   column parallel   replicated               sharded by out, as W     dA
//   row parallel      sharded by in, as W      replicated               y, with that of W; dB
//
// Every other parameter is frozen: it has no gradient, no moments and no part in checkpoints. It is read from lora%base
// at the start of a run.

#include <string>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/keys/lora.hpp"
#include "nanotron/nn/parameters/parameter.hpp"

namespace nanotron::model {

/// lora%base that stands for the initial values of the run's seed.
inline constexpr const char* initial_base = "initial";

/// Whether a linear layer of the layers has adapters: lora%targets has a pattern of its name, as
/// model.layers.self_attn.q_proj, or of the end of that name after a dot.
bool is_adapted(const deck::LoraConfig& lora, const nn::ParameterSpec& weight);

/// Elements of all adapters of the model; 0 without any.
double adapter_parameters(const deck::Config& config);

/// Reports targets that fit no linear layer, models without adapters (experts, latent attention), and what does not
/// work with frozen weights.
void check_lora(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::model
