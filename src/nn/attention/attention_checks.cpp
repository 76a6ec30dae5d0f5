#include "nanotron/nn/checks.hpp"

#include <algorithm>

#include "nanotron/deck/attention_sizes.hpp"
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/layer_kinds.hpp"
#include "nanotron/tensor/sequence_layout.hpp"

namespace nanotron::nn {
namespace {

using namespace deck::phrases;

void check_heads(const deck::Config& c, deck::Findings& f) {
  const deck::ModelConfig& m = c.model;
  const std::int64_t heads = m.num_attention_heads;
  if (m.head_dim == 0 && f.is_valid({"model.hidden_size", "model.num_attention_heads"}) && m.hidden_size % heads != 0) {
    f.error({"model.hidden_size", "model.num_attention_heads"},
            "hidden_size = " + text(m.hidden_size) + " does not divide into " + text(heads) + " heads",
            "a multiple of num_attention_heads: " + nearest_multiples(m.hidden_size, heads), "or give head_dim");
  }
  const bool divides = m.head_dim > 0 || m.hidden_size % heads == 0;
  const std::int64_t head_dim = m.head_dim > 0 ? m.head_dim : m.hidden_size / heads;
  if (divides && f.is_valid({"model.head_dim", "model.hidden_size", "model.num_attention_heads"}) &&
      ((head_dim % 2 != 0 && m.has_rotary() && m.partial_rotary_factor == 1.0) || head_dim == 0)) {
    f.error({"model.head_dim", "model.hidden_size"},
            "head_dim = " + text(head_dim) + " is odd" + (m.head_dim > 0 ? "" : " (hidden_size / num_attention_heads)"),
            "an even width: the rotary embedding rotates pairs");
  }
  if (m.head_dim == 0 && divides && f.is_valid({"model.hidden_size", "model.num_attention_heads"}) && head_dim > 256) {
    f.error({"model.num_attention_heads", "model.hidden_size"},
            "head_dim = " + text(head_dim) + " (hidden_size / num_attention_heads) is too wide", "at most 256",
            "more heads, or give head_dim");
  }
  const std::int64_t kv = m.num_key_value_heads;
  if (kv > 0 && f.is_valid({"model.num_key_value_heads", "model.num_attention_heads"}) && heads % kv != 0) {
    f.error({"model.num_key_value_heads"},
            "num_attention_heads = " + text(heads) + " is not a multiple of num_key_value_heads = " + text(kv),
            nearest_divisors(kv, heads));
  }
}

// Query heads of the tensor-parallel rank with the fewest, see nn/attention/heads.hpp: whole groups where there are at
// least tp.
std::int64_t fewest_heads(const deck::Config& c) {
  const std::int64_t heads = c.model.num_attention_heads, tp = std::max<std::int64_t>(c.parallel.tp, 1);
  const std::int64_t groups = c.model.num_key_value_heads > 0 ? c.model.num_key_value_heads : heads;
  return groups >= tp ? groups / tp * (heads / groups) : heads / tp;
}

// All-to-alls inside of a ring.
void check_parts(const deck::Config& c, deck::Findings& f) {
  const deck::ParallelConfig& p = c.parallel;
  const std::string key = "parallel.cp_all_to_all";
  const std::int64_t ranks = p.cp_all_to_all;
  if (c.precision.reproducible == deck::Reproducible::layout) return;  // 1, see fill_layout()
  if (ranks == 1 || p.cp <= 1 || !f.is_valid({key, "parallel.cp", "parallel.tp", "parallel.cp_mode"})) return;
  if (p.cp_mode == deck::CpMode::all_to_all) {
    f.error({key, "parallel.cp_mode"},
            "cp_all_to_all = " + text(ranks) + " is of a ring, and cp_mode = 'all_to_all' has none", "cp_mode = 'ring'",
            "or cp_all_to_all = 1");
  } else if (p.cp % ranks != 0) {
    f.error({key, "parallel.cp"}, "cp = " + text(p.cp) + " is not a multiple of cp_all_to_all = " + text(ranks),
            "a divisor of " + text(p.cp));
  } else if (const std::int64_t here = fewest_heads(c); p.tp <= c.model.num_attention_heads && ranks > here) {
    f.error({key, "model.num_attention_heads"},
            "cp_all_to_all = " + text(ranks) + " gives each of so many ranks its own attention heads, but of " +
                text(c.model.num_attention_heads) + " heads over tp = " + text(std::max<std::int64_t>(p.tp, 1)) +
                " a rank has " + text(here),
            at_most("cp_all_to_all", here));
  } else if (f.is_valid({"data.sequence_length"}) && c.data.sequence_length >= p.cp &&
             SequenceLayout(context_degrees(c), c.data.sequence_length).shortest_shard() == 0) {
    f.error({key, "data.sequence_length"},
            "a sequence of " + text(c.data.sequence_length) + " tokens leaves a rank without one: it has " +
                text(2 * p.cp / ranks) + " chunks, each of " + text(ranks) + " ranks",
            "at least " + text(2 * p.cp) + " tokens", "or a smaller cp_all_to_all");
  }
}

void check_context(const deck::Config& c, deck::Findings& f) {
  const deck::ParallelConfig& p = c.parallel;
  if (p.cp > c.data.sequence_length && f.is_valid({"parallel.cp", "data.sequence_length"})) {
    f.error({"parallel.cp", "data.sequence_length"},
            "cp = " + text(p.cp) + ", but a sequence has " + text(c.data.sequence_length) +
                " tokens; each rank of a context-parallel group needs one",
            at_most("cp", c.data.sequence_length));
  }
  check_parts(c, f);
  const std::int64_t heads = c.model.num_attention_heads, tp = std::max<std::int64_t>(p.tp, 1);
  const std::int64_t here = fewest_heads(c);
  if (p.cp_mode == deck::CpMode::all_to_all && p.tp <= heads && p.cp > here &&
      f.is_valid({"parallel.cp", "parallel.tp", "parallel.cp_mode", "model.num_attention_heads",
                  "model.num_key_value_heads"})) {
    f.error({"parallel.cp", "parallel.cp_mode"},
            "cp_mode = 'all_to_all' gives each of cp = " + text(p.cp) + " ranks its own attention heads, but of " +
                text(heads) + " heads over tp = " + text(tp) + " a rank has " + text(here),
            at_most("cp", here) + ", or cp_mode = 'ring'");
  }
}

}  // namespace

void check_attention(const deck::Config& c, deck::Findings& f) {
  if (!deck::attention_sizes(c.model).is_compressed) check_heads(c, f);
  deck::check_layer_kinds(c, f);
  check_context(c, f);
}

void fill_attention(deck::Config& c) {
  deck::ModelConfig& m = c.model;
  if (m.num_key_value_heads == 0) m.num_key_value_heads = m.num_attention_heads;
  if (m.head_dim == 0) m.head_dim = deck::attention_sizes(m).head_dim;
}

}  // namespace nanotron::nn
