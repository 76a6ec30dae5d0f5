#pragma once
// &moe of the deck.

#include <cstdint>
#include <string>

namespace nanotron::deck {

enum class AuxLossScale { per_layer, hugging_face };
enum class RouterScore { softmax, sigmoid };

/// The feed-forward network as a mixture of experts. Part of the model.
struct MoeConfig {
  std::int64_t num_experts = 0;  // 0: a dense network
  std::int64_t num_experts_per_tok = 2;
  std::int64_t moe_intermediate_size = 0;  // resolve(): intermediate_size
  std::int64_t shared_expert_intermediate_size = 0;
  std::int64_t n_shared_experts = 0;  // without a gate, each of moe_intermediate_size
  std::string expert_layers = "all";  // deck::LayerSet; the others are dense
  RouterScore router_score = RouterScore::softmax;
  bool router_bias = false;            // of its linear layer
  double router_bias_update_rate = 0;  // of the bias that balances the load without a loss; 0: no such bias
  std::int64_t n_group = 1, topk_group = 1;
  double routed_scaling_factor = 1.0;
  bool norm_topk_prob = true;
  double router_aux_loss_coef = 0.001;
  AuxLossScale router_aux_loss_scale = AuxLossScale::per_layer;
  double router_z_loss_coef = 0.0;
  double capacity_factor = 0.0;  // 0: no token is dropped
  double receive_factor = 0.0;   // 0: the worst case
  double receive_quantile = 0.0;
};

}  // namespace nanotron::deck
