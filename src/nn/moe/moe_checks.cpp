#include "nanotron/nn/moe/moe_checks.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "nanotron/deck/parameters.hpp"
#include "nanotron/deck/phrases.hpp"
#include "nanotron/tensor/layout_checks.hpp"

namespace nanotron::nn {
namespace {

using namespace deck::phrases;

// Refuses keys of &moe that a dense model would ignore; reports the first.
void refuse_keys_of_experts(const deck::Config& c, deck::Findings& f) {
  const deck::Config none;
  for (const deck::Parameter& row : deck::parameters()) {
    const std::string key = row.group + "." + row.name;
    if (row.group != "moe" || row.get(c) == row.get(none) || !f.trusted({key})) continue;
    f.error({key}, row.name + " is given, but num_experts = 0: the model is a dense one",
            "num_experts, or no keys of &moe");
    return;
  }
}

// Refuses a receive buffer smaller than an even load, and receive_factor where ep = 1.
void check_receive_factor(const deck::Config& c, deck::Findings& f) {
  const deck::MoeConfig& moe = c.model.moe;
  if (moe.receive_factor == 0.0 || !f.trusted({"moe.receive_factor", "moe.capacity_factor", "parallel.ep"})) return;
  const double even = moe.capacity_factor > 0.0 ? std::min(1.0, moe.capacity_factor) : 1.0;
  const auto number = [](double x) { return fmt::format("{:g}", x); };
  if (c.parallel.ep == 1) {
    f.error({"moe.receive_factor"},
            "receive_factor = " + number(moe.receive_factor) +
                " sizes a buffer for tokens of other ranks, and ep = 1 has none",
            "receive_factor = 0", "or ep > 1");
  } else if (moe.receive_factor < even) {
    f.error({"moe.receive_factor"},
            "receive_factor = " + number(moe.receive_factor) + " gives a smaller buffer than the " + number(even) +
                " that an even load needs",
            "more than " + number(even) + ", or 0");
  }
}

// Experts are SwiGLU networks without biases.
void check_network(const deck::ModelConfig& m, deck::Findings& f) {
  if (m.hidden_act != deck::HiddenAct::silu && f.trusted({"model.hidden_act"})) {
    f.error({"model.hidden_act", "moe.num_experts"}, "experts are SwiGLU networks", "hidden_act = 'silu'",
            "or num_experts = 0");
  }
  if (m.mlp_bias && f.trusted({"model.mlp_bias"})) {
    f.error({"model.mlp_bias", "moe.num_experts"}, "experts have no biases", "mlp_bias = .false.",
            "or num_experts = 0");
  }
}

}  // namespace

void check_moe(const deck::Config& c, deck::Findings& f) {
  const deck::MoeConfig& moe = c.model.moe;
  const deck::ParallelConfig& p = c.parallel;
  if (!f.trusted({"moe.num_experts"})) return;
  if (moe.num_experts == 0) {
    refuse_keys_of_experts(c, f);
    if (p.ep > 1 && f.trusted({"parallel.ep"})) {
      f.error({"parallel.ep"}, "ep = " + text(p.ep) + ", but num_experts = 0: the model has no experts",
              "ep = 1, or moe%num_experts");
    }
    return;
  }
  if (moe.num_experts_per_tok > moe.num_experts && f.trusted({"moe.num_experts_per_tok"})) {
    f.error({"moe.num_experts_per_tok"},
            "num_experts_per_tok = " + text(moe.num_experts_per_tok) + " of " + text(moe.num_experts) + " experts",
            "at most " + text(moe.num_experts));
  }
  if (p.ep > 1 && moe.num_experts % p.ep != 0 && f.trusted({"parallel.ep"})) {
    f.error({"parallel.ep", "moe.num_experts"},
            "num_experts = " + text(moe.num_experts) + " is not a multiple of ep = " + text(p.ep),
            "ep a divisor of " + text(moe.num_experts));
  }
  const std::int64_t replicas = p.dp * p.cp;
  if (replicas > 0 && replicas % p.ep != 0 && f.trusted({"parallel.ep", "parallel.dp", "parallel.cp"})) {
    f.error({"parallel.ep"},
            "ep = " + text(p.ep) + " does not divide the data-parallel group of " + text(replicas) +
                " ranks (dp x cp), over which experts are sharded",
            "a divisor of " + text(replicas));
  }
  check_network(c.model, f);
  check_receive_factor(c, f);
  if (p.tp_mode != deck::TpMode::all_reduce && p.tp > 1) {
    refuse_layout(c, f, "parallel.tp_mode", "experts and sequence parallelism", "tp_mode = 'all_reduce'");
  }
}

void fill_moe(deck::Config& c) {
  deck::MoeConfig& moe = c.model.moe;
  if (moe.num_experts > 0 && moe.moe_intermediate_size == 0) moe.moe_intermediate_size = c.model.intermediate_size;
}

}  // namespace nanotron::nn
