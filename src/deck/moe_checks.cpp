// What a deck with experts must say, and one without must not.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "config_checks.hpp"

namespace nanotron::deck::detail {
namespace {

// What a dense network would pass over.
void refuse_keys_of_experts(const MoeConfig& moe, Findings& f) {
  const MoeConfig none;
  const std::pair<const char*, bool> given[] = {
      {"moe.num_experts_per_tok", moe.num_experts_per_tok != none.num_experts_per_tok},
      {"moe.moe_intermediate_size", moe.moe_intermediate_size != none.moe_intermediate_size},
      {"moe.shared_expert_intermediate_size", moe.shared_expert_intermediate_size != none.shared_expert_intermediate_size},
      {"moe.norm_topk_prob", moe.norm_topk_prob != none.norm_topk_prob},
      {"moe.router_aux_loss_coef", moe.router_aux_loss_coef != none.router_aux_loss_coef},
      {"moe.router_aux_loss_scale", moe.router_aux_loss_scale != none.router_aux_loss_scale},
      {"moe.router_z_loss_coef", moe.router_z_loss_coef != none.router_z_loss_coef},
      {"moe.capacity_factor", moe.capacity_factor != none.capacity_factor},
      {"moe.receive_factor", moe.receive_factor != none.receive_factor}};
  for (const auto& [key, differs] : given) {
    if (!differs || !f.trusted({key})) continue;
    f.error({key}, std::string(key).substr(4) + " is given, but num_experts = 0: the model is a dense one",
            "num_experts, or no keys of &moe");
    return;
  }
}

// Room for fewer rows than an even load brings, or for rows that nobody sends.
void check_receive_factor(const Config& c, Findings& f) {
  const MoeConfig& moe = c.model.moe;
  if (moe.receive_factor == 0.0 || !f.trusted({"moe.receive_factor", "moe.capacity_factor", "parallel.ep"})) return;
  const double even = moe.capacity_factor > 0.0 ? std::min(1.0, moe.capacity_factor) : 1.0;
  const auto number = [](double x) { return fmt::format("{:g}", x); };
  if (c.parallel.ep == 1) {
    f.error({"moe.receive_factor"},
            "receive_factor = " + number(moe.receive_factor) + " is of tokens from other ranks, which ep = 1 does not have",
            "receive_factor = 0", "or ep > 1");
  } else if (moe.receive_factor < even) {
    f.error({"moe.receive_factor"},
            "receive_factor = " + number(moe.receive_factor) + " leaves no room for the " + number(even) +
                " that an even load brings",
            "more than " + number(even) + ", or 0");
  }
}

}  // namespace

void check_moe(const Config& c, Findings& f) {
  const MoeConfig& moe = c.model.moe;
  const ParallelConfig& p = c.parallel;
  if (!f.trusted({"moe.num_experts"})) return;
  if (moe.num_experts == 0) {
    refuse_keys_of_experts(moe, f);
    if (p.ep > 1 && f.trusted({"parallel.ep"})) {
      f.error({"parallel.ep"}, "ep = " + text(p.ep) + ", but num_experts = 0: the model has no experts", "ep = 1, or moe%num_experts");
    }
    return;
  }
  if (moe.num_experts_per_tok > moe.num_experts && f.trusted({"moe.num_experts_per_tok"})) {
    f.error({"moe.num_experts_per_tok"}, "num_experts_per_tok = " + text(moe.num_experts_per_tok) + " of " +
            text(moe.num_experts) + " experts", "at most " + text(moe.num_experts));
  }
  if (p.ep > 1 && moe.num_experts % p.ep != 0 && f.trusted({"parallel.ep"})) {
    f.error({"parallel.ep", "moe.num_experts"}, "num_experts = " + text(moe.num_experts) + " do not divide over ep = " +
            text(p.ep) + " ranks", "ep a divisor of " + text(moe.num_experts));
  }
  const std::int64_t replicas = p.dp * p.cp;
  if (replicas > 0 && replicas % p.ep != 0 && f.trusted({"parallel.ep", "parallel.dp", "parallel.cp"})) {
    f.error({"parallel.ep"}, "ep = " + text(p.ep) + " does not divide the " + text(replicas) + " replicas (dp x cp), which share the experts",
            "a divisor of " + text(replicas));
  }
  if (p.zero_stage > 0 && p.zero_size > 0 && p.zero_size % p.ep != 0 && p.ep % p.zero_size != 0 &&
      f.trusted({"parallel.ep", "parallel.zero_size"})) {
    f.error({"parallel.zero_size", "parallel.ep"},
            "a shard group of zero_size = " + text(p.zero_size) + " replicas does not hold whole sets of experts over ep = " + text(p.ep) + " ranks",
            "zero_size a multiple or a divisor of ep");
  }
  check_receive_factor(c, f);
  if (p.gradient_sum == GradientRule::adasum && p.ep > 1 && f.trusted({"parallel.gradient_sum", "parallel.ep"})) {
    f.error({"parallel.ep", "parallel.gradient_sum"},
            "gradient_sum = 'adasum' takes each replica's own gradient; with ep = " + text(p.ep) +
                " an expert's is of the tokens of so many replicas",
            "ep = 1", "or gradient_sum = 'sum'");
  }
}

}  // namespace nanotron::deck::detail
