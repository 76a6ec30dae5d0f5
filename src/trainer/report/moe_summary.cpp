// What the summary of a model says of a mixture of experts.

#include <fmt/format.h>

#include <cmath>

#include "model_summary.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/expert_ranks.hpp"
#include "nanotron/deck/layer_kinds.hpp"
#include "nanotron/deck/micro_batch.hpp"
#include "nanotron/nn/moe/receive_buffer.hpp"
#include "nanotron/tensor/sequence_layout.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::trainer {

namespace {

// The receive buffer of expert parallelism, where its size follows from a quantile.
std::string receive_buffer_text(const deck::Config& c) {
  const deck::MoeConfig& moe = c.model.moe;
  if (moe.receive_quantile == 0.0) return "";
  const SequenceLayout layout(context_degrees(c), c.data.sequence_length);
  const index_t tokens = deck::sequences_at_once(c) * layout.longest_shard(),
                even = shard_range(tokens, static_cast<int>(deck::tp_in_ep(c.parallel)), 0).size() *
                       moe.num_experts_per_tok;
  const std::int64_t draws = deck::routed_layer_count(c.model) * c.parallel.ep * c.data.global_batch_size /
                             (deck::sequences_at_once(c) * c.parallel.dp);
  return fmt::format(
      "receive buffer: {:.3f} of an even load of {} rows, quantile {:.15g}; balanced routers exceed it in {:.2g} of "
      "the steps ({} dispatches to a rank in a group)\n",
      nn::receive_buffer_factor(moe, even, c.parallel.ep), even, moe.receive_quantile,
      -std::expm1(static_cast<double>(draws) * std::log(moe.receive_quantile)), draws);
}

}  // namespace

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
  return fmt::format("router losses: load balance {} ({}), z {} (sum over the layers)\n{}", moe.router_aux_loss_coef,
                     per_layer ? std::string("'per_layer': sum over the layers of a loss that is 1 for an even load")
                               : fmt::format("'hugging_face': mean over the layers of a loss that is {} for an even "
                                             "load",
                                             moe.num_experts_per_tok),
                     moe.router_z_loss_coef, receive_buffer_text(c));
}

}  // namespace nanotron::trainer
