// What the summary of a model says of a mixture of experts.

#include <fmt/format.h>

#include "model_summary.hpp"
#include "nanotron/deck/config.hpp"

namespace nanotron::trainer {

std::string feed_forward_text(const deck::Config& c) {
  const deck::MoeConfig& moe = c.model.moe;
  if (moe.num_experts == 0) return fmt::format("ffn {}", c.model.intermediate_size);
  const std::string shared = moe.shared_expert_intermediate_size == 0
                                 ? ""
                                 : fmt::format(" and a shared one of {}", moe.shared_expert_intermediate_size);
  const std::string capacity =
      moe.capacity_factor == 0.0 ? "dropless" : fmt::format("capacity factor {}", moe.capacity_factor);
  return fmt::format("{} of {} experts of {}{} ({})", moe.num_experts_per_tok, moe.num_experts,
                     moe.moe_intermediate_size, shared, capacity);
}

std::string feed_forward_losses_text(const deck::Config& c) {
  const deck::MoeConfig& moe = c.model.moe;
  if (moe.num_experts == 0) return "";
  const bool per_layer = moe.router_aux_loss_scale == deck::AuxLossScale::per_layer;
  return fmt::format("router losses: load balance {} ({}), z {} (sum over the layers)\n", moe.router_aux_loss_coef,
                     per_layer ? std::string("'per_layer': sum over the layers of a loss that is 1 for an even load")
                               : fmt::format("'hugging_face': mean over the layers of a loss that is {} for an even "
                                             "load",
                                             moe.num_experts_per_tok),
                     moe.router_z_loss_coef);
}

}  // namespace nanotron::trainer
