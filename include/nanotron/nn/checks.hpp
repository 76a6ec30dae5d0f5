#pragma once

#include "nanotron/deck/checks/findings.hpp"

namespace nanotron::nn {

/// Checks head sizes, and that context parallelism has enough tokens and heads.
void check_attention(const deck::Config& config, deck::Findings& findings);

/// Checks the widths of compressed tokens and heads, and refuses what attention cannot do with them; or the keys of
/// them where there are none.
void check_compressed(const deck::Config& config, deck::Findings& findings);

/// Fills in num_key_value_heads and head_dim where they are 0.
void fill_attention(deck::Config& config);

/// Learned positions or RoPE: checks sizes and scaling, and refuses keys of the other kind.
void check_positions(const deck::Config& config, deck::Findings& findings);

/// Refuses keys of the norm of queries and keys where the model has none.
void check_query_key_norm(const deck::Config& config, deck::Findings& findings);

/// Refuses keys of the norm that the model does not use.
void check_norm(const deck::Config& config, deck::Findings& findings);

/// Refuses keys of activations that the model does not have, and what the activation cannot do.
void check_activation(const deck::Config& config, deck::Findings& findings);

/// Checks tp against the dimensions that it shards, and the keys of tp_mode = 'reduce_scatter'.
void check_tensor_parallel(const deck::Config& config, deck::Findings& findings);

/// Checks parallel%mlp_tile against what dense networks in tiles cannot do.
void check_mlp_tile(const deck::Config& config, deck::Findings& findings);

/// Checks precision%compute = 'fp8' against what FP8 GEMMs cannot do.
void check_fp8(const deck::Config& config, deck::Findings& findings);

/// Refuses FP8 operands of experts where there are none.
void check_fp8_experts(const deck::Config& config, deck::Findings& findings);

/// Checks the keys of &moe, or refuses them where num_experts = 0; checks ep against num_experts and dp x cp.
void check_moe(const deck::Config& config, deck::Findings& findings);

/// Checks that the shard groups of ZeRO divide the experts over ep.
void check_expert_shards(const deck::Config& config, deck::Findings& findings);

/// With reproducible = 'layout' and a deck without errors: checks that ep neighbouring ranks have a node of the sums
/// over tokens; sets how rows travel and are multiplied.
void check_expert_order(const deck::Config& config, deck::Findings& findings);
void fill_expert_order(deck::Config& config);

/// Fills in moe_intermediate_size where it is 0.
void fill_moe(deck::Config& config);

}  // namespace nanotron::nn
