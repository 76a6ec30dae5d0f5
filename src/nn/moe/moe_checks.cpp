#include "nanotron/nn/checks.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/expert_ranks.hpp"
#include "nanotron/deck/later_tokens.hpp"
#include "nanotron/deck/layer_kinds.hpp"
#include "nanotron/deck/layer_recompute.hpp"
#include "nanotron/deck/table/parameters.hpp"
#include "nanotron/nn/vocab/vocab_loss.hpp"
#include "nanotron/tensor/layout_checks.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::nn {
namespace {

using namespace deck::phrases;

// Refuses keys of &moe that a dense model would ignore; reports the first.
void refuse_keys_of_experts(const deck::Config& c, deck::Findings& f) {
  const deck::Config none;
  for (const deck::Parameter& row : deck::parameters()) {
    const std::string key = row.group + "." + row.name;
    if (row.group != "moe" || row.get(c) == row.get(none) || !f.is_valid({key})) continue;
    f.error({key}, row.name + " is given, but num_experts = 0: the model is dense", "num_experts, or no keys of &moe");
    return;
  }
}

// Refuses a receive buffer smaller than an even load, and receive_factor where ep = 1.
void check_receive_factor(const deck::Config& c, deck::Findings& f) {
  const deck::MoeConfig& moe = c.model.moe;
  if (moe.receive_factor == 0.0 || !f.is_valid({"moe.receive_factor", "moe.capacity_factor", "parallel.ep"})) return;
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

// Refuses tiles of dense networks where no layer has one.
void check_tiles(const deck::Config& c, deck::Findings& f) {
  if (c.parallel.mlp_tile == 0 || !f.is_valid({"parallel.mlp_tile", "model.num_hidden_layers", "moe.expert_layers"}))
    return;
  if (deck::routed_layer_count(c.model) < c.model.num_hidden_layers) return;
  f.error({"parallel.mlp_tile", "moe.expert_layers"},
          "no layer has a dense network: tiles do not divide the tokens of experts", "mlp_tile = 0",
          "or layers without experts in expert_layers");
}

// A quantile of the rows that a rank receives: above the mean, which is an even load, and not beside a factor of it.
void check_receive_quantile(const deck::Config& c, deck::Findings& f) {
  const deck::MoeConfig& moe = c.model.moe;
  if (moe.receive_quantile == 0.0 || !f.is_valid({"moe.receive_quantile", "moe.receive_factor", "parallel.ep"})) return;
  const std::string given = fmt::format("receive_quantile = {:g}", moe.receive_quantile);
  if (c.parallel.ep == 1) {
    f.error({"moe.receive_quantile"}, given + " sizes a buffer for tokens of other ranks, and ep = 1 has none",
            "receive_quantile = 0", "or ep > 1");
  } else if (moe.receive_factor > 0.0) {
    f.error({"moe.receive_quantile", "moe.receive_factor"},
            given + " and receive_factor both say how large the buffer is", "one of them");
  } else if (moe.receive_quantile < 0.9) {
    f.error({"moe.receive_quantile"}, given + ": dispatches of a step would not fit in the buffer",
            "at least 0.9, for example 0.999999, or 0");
  }
}

// Experts are gated networks.
void check_network(const deck::ModelConfig& m, deck::Findings& f) {
  if (!m.is_gated() && f.is_valid({"model.hidden_act"})) {
    f.error({"model.hidden_act", "moe.num_experts"}, "experts are gated networks",
            "hidden_act = 'silu', 'swiglu_clamped', 'geglu' or 'geglu_tanh'", "or num_experts = 0");
  }
}

// Biases of experts: of each row's expert, which the host must know.
void check_biases(const deck::Config& c, deck::Findings& f) {
  if (!c.model.mlp_bias || !f.is_valid({"model.mlp_bias"})) return;
  const auto refuse = [&](const std::string& key, const std::string& found, const std::string& expected) {
    if (f.is_valid({key})) f.error({key, "model.mlp_bias"}, found, expected, "or mlp_bias = .false.");
  };
  if (c.run.expert_gemms == deck::ExpertGemms::grouped) {
    refuse("run.expert_gemms", "grouped GEMMs of experts have no biases", "expert_gemms = 'library'");
  }
  if (deck::feed_forward_sizes(c.model).shared_width.size > 0) {
    refuse("moe.n_shared_experts", "shared experts have no biases", "no shared experts");
  }
}

void check_shared(const deck::MoeConfig& moe, deck::Findings& f) {
  if (moe.n_shared_experts == 0 || moe.shared_expert_intermediate_size == 0) return;
  f.error({"moe.n_shared_experts", "moe.shared_expert_intermediate_size"},
          "n_shared_experts = " + text(moe.n_shared_experts) + " have no gate, and shared_expert_intermediate_size = " +
              text(moe.shared_expert_intermediate_size) + " is the width of one with a gate",
          "one of the two keys");
}

// The groups in which a token chooses its experts.
void check_groups(const deck::MoeConfig& moe, deck::Findings& f) {
  if (!f.is_valid({"moe.n_group", "moe.topk_group", "moe.num_experts_per_tok"})) return;
  if (moe.num_experts % moe.n_group != 0) {
    f.error({"moe.n_group", "moe.num_experts"},
            "num_experts = " + text(moe.num_experts) + " is not a multiple of n_group = " + text(moe.n_group),
            "n_group a divisor of " + text(moe.num_experts));
  } else if (moe.topk_group > moe.n_group) {
    f.error({"moe.topk_group"},
            "topk_group = " + text(moe.topk_group) + " of n_group = " + text(moe.n_group) + " groups",
            "at most " + text(moe.n_group));
  } else if (moe.num_experts_per_tok > moe.topk_group * (moe.num_experts / moe.n_group)) {
    f.error({"moe.topk_group", "moe.num_experts_per_tok"},
            "num_experts_per_tok = " + text(moe.num_experts_per_tok) + ", but topk_group = " + text(moe.topk_group) +
                " groups have only " + text(moe.topk_group * (moe.num_experts / moe.n_group)) + " experts",
            "more groups, or fewer experts per token");
  }
}

void check_scores(const deck::MoeConfig& moe, deck::Findings& f) {
  if (moe.router_score == deck::RouterScore::softmax || moe.router_z_loss_coef == 0.0) return;
  if (!f.is_valid({"moe.router_score", "moe.router_z_loss_coef"})) return;
  f.error({"moe.router_z_loss_coef", "moe.router_score"},
          "the z-loss is of softmax scores, and router_score = 'sigmoid'", "router_z_loss_coef = 0",
          "or router_score = 'softmax'");
}

// Columns of an expert on the ranks of a tensor-parallel group, or 0 where all are multiples of 8.
std::int64_t unfit_width(std::int64_t width, std::int64_t tp) {
  for (int rank = 0; rank < static_cast<int>(tp); ++rank) {
    const index_t here = shard_range(width, static_cast<int>(tp), rank).size();
    if (here % 8 != 0) return here;
  }
  return 0;
}

bool stores_bf16(const deck::Config& c) {
  return with_scalar_type(c.precision.compute, []<class T>(std::type_identity<T>) { return std::is_same_v<T, bf16>; });
}

void check_losses(const deck::Config& c, deck::Findings& f) {
  if (objective_of(c).of_sequences && deck::drops_tokens(c.model) && f.is_valid({"moe.capacity_factor"})) {
    f.error({"moe.capacity_factor"},
            "with a capacity of experts the log-probability of an answer depends on the other answers of the batch",
            "capacity_factor = 0");
  }
  if (c.optimizer.name != "sophia") return;
  for (const auto& [key, coefficient] : {std::pair{"router_aux_loss_coef", c.model.moe.router_aux_loss_coef},
                                         {"router_z_loss_coef", c.model.moe.router_z_loss_coef}}) {
    const std::string name = std::string("moe.") + key;
    if (coefficient == 0.0 || !f.is_valid({"optimizer.name", name})) continue;
    f.error({"optimizer.name", name},
            std::string("Sophia estimates the curvature of cross-entropy alone, and routers have a loss with ") + key,
            std::string(key) + " = 0, or name = 'adamw'");
  }
}

// Grouped GEMMs multiply bf16 on tensor cores, of which a load takes 8 elements, in sums that follow the rows.
void check_gemms(const deck::Config& c, deck::Findings& f) {
  const std::string key = "run.expert_gemms";
  if (c.run.expert_gemms == deck::ExpertGemms::library || !f.is_valid({key})) return;
  const auto refuse = [&](const std::string& other, const std::string& found, const std::string& expected) {
    if (f.is_valid({other})) f.error({key, other}, found, expected, "or expert_gemms = 'library'");
  };
  const deck::ModelConfig& m = c.model;
  if (!has_mma_kernels) {
    f.error({key}, "grouped GEMMs of experts are kernels for NVIDIA's tensor cores, and this program is for AMD GPUs",
            "expert_gemms = 'library'");
  }
  if (!stores_bf16(c)) {
    refuse("precision.compute", "grouped GEMMs of experts need bf16", values_with("precision", "compute", stores_bf16));
  }
  if (m.hidden_size % 8 != 0) {
    refuse("model.hidden_size",
           "hidden_size = " + text(m.hidden_size) + ", but grouped GEMMs of experts load 8 elements at a time",
           "a multiple of 8: " + nearest_multiples(m.hidden_size, 8));
  }
  const std::int64_t width = m.moe.moe_intermediate_size > 0 ? m.moe.moe_intermediate_size : m.intermediate_size;
  const bool is_sharded = c.parallel.tp > 0 && !deck::ep_spans_tp(c.parallel);
  const std::int64_t unfit = is_sharded ? unfit_width(width, c.parallel.tp) : 0;
  if (unfit > 0 && f.is_valid({"parallel.tp", "model.intermediate_size"})) {
    refuse("moe.moe_intermediate_size",
           "experts of width " + text(width) + " over tp = " + text(c.parallel.tp) + " have " + text(unfit) +
               " columns on a rank, but grouped GEMMs load 8 elements at a time",
           "a multiple of 8 columns on each rank: " + nearest_multiples(width, 8 * c.parallel.tp));
  }
}

// Rows of ranks with experts of others are rounded, and with 'layout' all would have to be.
void check_row_type(const deck::Config& c, deck::Findings& f) {
  if (c.parallel.ep_row_type == deck::ExpertRowType::compute || !f.is_valid({"parallel.ep_row_type", "parallel.ep"}))
    return;
  if (c.model.moe.num_experts == 0 || c.parallel.ep == 1) {
    f.error({"parallel.ep_row_type"}, "ep_row_type is of rows that travel between ranks, and ep = 1 has none",
            "ep > 1, or ep_row_type = 'compute'");
  }
  refuse_layout(c, f, "parallel.ep_row_type", "rows that are rounded where they travel", "ep_row_type = 'compute'");
}

// Experts are sharded over all tensor-parallel ranks, or whole.
void check_expert_tp(const deck::Config& c, deck::Findings& f) {
  const deck::ParallelConfig& p = c.parallel;
  if (p.expert_tp == 0 || !f.is_valid({"parallel.expert_tp", "parallel.tp"})) return;
  if (c.model.moe.num_experts == 0) {
    f.error({"parallel.expert_tp"}, "expert_tp is given, but num_experts = 0: the model has no experts",
            "moe%num_experts, or expert_tp = 0");
  } else if (p.tp > 0 && p.expert_tp != 1 && p.expert_tp != p.tp) {
    f.error({"parallel.expert_tp", "parallel.tp"},
            "expert_tp = " + text(p.expert_tp) + ", but each expert is sharded over all tp = " + text(p.tp) +
                " tensor-parallel ranks or over none",
            "expert_tp = 1, or 0 for " + text(p.tp));
  }
}

// With 'layout' a micro-batch is one sequence, and two of them take turns.
void check_pairs(const deck::Config& c, deck::Findings& f) {
  const std::int64_t dp = c.parallel.dp;
  if (dp == 0 || !f.is_valid({"parallel.dp"})) return;
  for (const auto& [name, sequences] :
       {std::pair<std::string, std::int64_t>{"global_batch_size", c.data.global_batch_size},
        {"rampup_batch_size", c.data.rampup_batch_size},
        {"rampup_increment", c.data.rampup_increment}}) {
    if (sequences % (2 * dp) == 0 || !f.is_valid({"data." + name})) continue;
    f.error({"data." + name, "parallel.ep_overlap"},
            "ep_overlap computes sequences in pairs, but " + name + " gives each of dp = " + text(dp) + " ranks " +
                text(sequences / dp),
            name + " a multiple of " + text(2 * dp), "or ep_overlap = .false.");
  }
}

// Rows that go once to each node. What they need of the hosts: src/comm/message_nodes.cpp.
void check_messages(const deck::Config& c, deck::Findings& f) {
  const deck::ParallelConfig& p = c.parallel;
  if (!f.is_valid({"parallel.ep_messages", "parallel.ep_nodes", "parallel.ep"})) return;
  if (p.ep_messages == deck::ExpertMessages::by_rank) {
    if (p.ep_nodes > 0) {
      f.error({"parallel.ep_nodes"}, "ep_nodes is of messages by node, and ep_messages = 'by_rank'",
              "ep_messages = 'by_node'", "or ep_nodes = 0");
    }
    return;
  }
  if (c.model.moe.num_experts == 0 || p.ep == 1) {
    f.error({"parallel.ep_messages"}, "ep_messages is of rows that travel between ranks, and ep = 1 has none",
            "ep > 1, or ep_messages = 'by_rank'");
  } else if (p.ep_nodes > 0 && p.ep % p.ep_nodes != 0) {
    f.error({"parallel.ep_nodes", "parallel.ep"},
            "ep = " + text(p.ep) + " ranks are not a multiple of ep_nodes = " + text(p.ep_nodes),
            "ep_nodes a divisor of " + text(p.ep));
  }
}

void check_recomputed_dispatch(const deck::Config& c, deck::Findings& f) {
  const deck::ParallelConfig& p = c.parallel;
  const std::string key = "parallel.recompute_dispatch", change = "or recompute_dispatch = .false.";
  if (!p.recompute_dispatch || !f.is_valid({key, "parallel.ep", "parallel.recompute"})) return;
  if (c.model.moe.num_experts == 0 || p.ep == 1) {
    f.error({key}, "recompute_dispatch is of rows that travel between ranks, and ep = 1 has none", "ep > 1", change);
  } else if (f.is_valid({"moe.expert_layers"}) && deck::recomputes_all(c, deck::routed_layers(c.model), f)) {
    f.error(
        {key, "parallel.recompute"},
        "recompute_dispatch is of layers that are not computed again as a whole, and recompute = 'full' does that in "
        "all layers with experts",
        "recompute = 'selective' or 'none', or fewer layers of 'full'", change);
  }
}

// Two halves of a micro-batch that take turns.
void check_halves(const deck::Config& c, deck::Findings& f) {
  const deck::ParallelConfig& p = c.parallel;
  if (!p.ep_overlap || !f.is_valid({"parallel.ep_overlap", "parallel.ep"})) return;
  if (c.model.moe.num_experts == 0 || p.ep == 1) {
    f.error({"parallel.ep_overlap"}, "ep_overlap overlaps messages between ranks with experts, and ep = 1 has none",
            "ep > 1, or ep_overlap = .false.");
    return;
  }
  const bool keeps_order = c.precision.reproducible == deck::Reproducible::layout;
  if (deck::embeds_at_end(c.model) && (p.zero_stage > 1 || keeps_order) &&
      f.is_valid({"parallel.zero_stage", "model.tie_word_embeddings", "model.num_nextn_predict_layers"})) {
    f.error(
        {"parallel.ep_overlap"},
        "ep_overlap adds both halves at the end of the model to the gradient of the embedding, which is used there "
        "too, before those at its beginning, but zero_stage > 1 and reproducible = 'layout' reduce it after each half",
        "zero_stage at most 1 and no 'layout', or ep_overlap = .false.");
  }
  if (p.offload_layers > 0 && f.is_valid({"parallel.offload_layers"})) {
    f.error({"parallel.offload_layers", "parallel.ep_overlap"},
            "offload_layers copies the layers of one micro-batch, but ep_overlap computes two halves in turns",
            "offload_layers = 0, or ep_overlap = .false.");
  }
  if (keeps_order) return check_pairs(c, f);
  if (!f.is_valid({"data.micro_batch_size"}) || c.data.micro_batch_size % 2 == 0) return;
  f.error({"data.micro_batch_size", "parallel.ep_overlap"},
          "ep_overlap computes a micro-batch as two halves, but micro_batch_size = " + text(c.data.micro_batch_size),
          "an even micro_batch_size, or ep_overlap = .false.");
}

// ep divides the ranks among which experts are distributed.
void check_expert_ranks(const deck::ParallelConfig& p, deck::Findings& f) {
  const std::int64_t ranks = p.dp * p.cp * deck::tp_in_ep(p);
  if (ranks == 0 || ranks % p.ep == 0) return;
  if (!f.is_valid({"parallel.ep", "parallel.dp", "parallel.cp", "parallel.tp", "parallel.expert_tp"})) return;
  const std::string those = deck::ep_spans_tp(p) ? "the " + text(ranks) + " ranks of a stage (tp x cp x dp)"
                                                 : "the data-parallel group of " + text(ranks) + " ranks (dp x cp)";
  f.error({"parallel.ep"}, "ep = " + text(p.ep) + " does not divide " + those + ", over which experts are sharded",
          "a divisor of " + text(ranks));
}

}  // namespace

void check_moe(const deck::Config& c, deck::Findings& f) {
  const deck::MoeConfig& moe = c.model.moe;
  const deck::ParallelConfig& p = c.parallel;
  if (!f.is_valid({"moe.num_experts"})) return;
  check_halves(c, f);
  check_row_type(c, f);
  check_messages(c, f);
  check_recomputed_dispatch(c, f);
  check_expert_tp(c, f);
  if (moe.num_experts == 0) {
    refuse_keys_of_experts(c, f);
    if (p.ep > 1 && f.is_valid({"parallel.ep"})) {
      f.error({"parallel.ep"}, "ep = " + text(p.ep) + ", but num_experts = 0: the model has no experts",
              "ep = 1, or moe%num_experts");
    }
    if (c.run.expert_gemms != deck::ExpertGemms::library && f.is_valid({"run.expert_gemms"})) {
      f.error({"run.expert_gemms"}, "expert_gemms is given, but num_experts = 0: the model has no experts",
              "moe%num_experts, or no expert_gemms");
    }
    return;
  }
  if (moe.num_experts_per_tok > moe.num_experts && f.is_valid({"moe.num_experts_per_tok"})) {
    f.error({"moe.num_experts_per_tok"},
            "num_experts_per_tok = " + text(moe.num_experts_per_tok) + " of " + text(moe.num_experts) + " experts",
            "at most " + text(moe.num_experts));
  }
  if (p.ep > 1 && moe.num_experts % p.ep != 0 && f.is_valid({"parallel.ep"})) {
    f.error({"parallel.ep", "moe.num_experts"},
            "num_experts = " + text(moe.num_experts) + " is not a multiple of ep = " + text(p.ep),
            "ep a divisor of " + text(moe.num_experts));
  }
  check_expert_ranks(p, f);
  check_network(c.model, f);
  check_biases(c, f);
  check_shared(moe, f);
  check_groups(moe, f);
  check_scores(moe, f);
  check_losses(c, f);
  check_gemms(c, f);
  check_receive_factor(c, f);
  check_receive_quantile(c, f);
  check_tiles(c, f);
  if (c.data.length_buckets && f.is_valid({"data.length_buckets"})) {
    f.error({"data.length_buckets", "moe.num_experts"},
            "length_buckets leaves positions between documents without a target, and routers would count them",
            "length_buckets = .false.", "or num_experts = 0");
  }
}

// zero_size, or tp x zero_size of whole experts, is a multiple or a divisor of ep: a shard group holds whole sets of
// experts, or a set whole shard groups.
void check_expert_shards(const deck::Config& c, deck::Findings& f) {
  const deck::ParallelConfig& p = c.parallel;
  if (c.model.moe.num_experts == 0 || !f.is_valid({"moe.num_experts", "parallel.ep", "parallel.zero_size"})) return;
  const std::int64_t of_tp = deck::tp_in_ep(p), ranks = p.zero_size * of_tp;
  if (p.zero_stage == 0 || ranks == 0 || ranks % p.ep == 0 || p.ep % ranks == 0) return;
  const std::string tp = of_tp > 1 ? "tp = " + text(of_tp) + " times " : "";
  f.error({"parallel.zero_size", "parallel.ep"},
          "a shard group of " + tp + "zero_size = " + text(p.zero_size) +
              " ranks does not hold whole sets of experts over ep = " + text(p.ep) + " ranks",
          (of_tp > 1 ? "tp * " : std::string()) + "zero_size a multiple or a divisor of ep");
}

void fill_moe(deck::Config& c) {
  deck::MoeConfig& moe = c.model.moe;
  if (moe.num_experts > 0 && moe.moe_intermediate_size == 0) moe.moe_intermediate_size = c.model.intermediate_size;
}

}  // namespace nanotron::nn
