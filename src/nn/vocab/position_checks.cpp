#include "nanotron/nn/checks.hpp"

#include <algorithm>
#include <initializer_list>

#include "nanotron/deck/attention_sizes.hpp"
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/reals.hpp"
#include "nanotron/nn/attention/rotation.hpp"

namespace nanotron::nn {
namespace {

using deck::RopeType;
using namespace deck::phrases;

void check_learned(const deck::Config& c, deck::Findings& f) {
  const deck::ModelConfig& m = c.model;
  if (!f.is_valid({"model.max_position_embeddings", "data.sequence_length"})) return;
  if (m.max_position_embeddings < c.data.sequence_length) {
    f.error({"model.max_position_embeddings", "data.sequence_length"},
            "max_position_embeddings = " + text(m.max_position_embeddings) + " learned positions for sequences of " +
                text(c.data.sequence_length) + " tokens",
            "at least sequence_length");
  } else if (c.parallel.tp > m.max_position_embeddings && f.is_valid({"parallel.tp"})) {
    f.error(
        {"parallel.tp", "model.max_position_embeddings"},
        "tp = " + text(c.parallel.tp) + " is more than the " + text(m.max_position_embeddings) + " learned positions",
        at_most("tp", m.max_position_embeddings));
  }
}

bool is_of(const deck::ModelConfig& m, std::initializer_list<RopeType> types) {
  return std::ranges::find(types, m.rope_type) != types.end();
}

// Keys of types of RoPE scaling that the deck does not have.
void check_unused_scaling(const deck::Config& c, deck::Findings& f) {
  const deck::ModelConfig& m = c.model;
  if (is_of(m, {RopeType::standard})) {
    refuse_unused(c, {"model.rope_factor", "model.original_max_position_embeddings"}, "rope scaling",
                  "rope_type = 'linear', 'dynamic', 'llama3', 'yarn' or 'longrope'", f);
  } else if (is_of(m, {RopeType::linear})) {
    refuse_unused(c, {"model.original_max_position_embeddings"}, "the other types of rope scaling",
                  "rope_type = 'dynamic', 'llama3', 'yarn' or 'longrope'", f);
  }
  if (!is_of(m, {RopeType::llama3})) {
    refuse_unused(c, {"model.rope_low_freq_factor", "model.rope_high_freq_factor"}, "rope_type = 'llama3'",
                  "rope_type = 'llama3'", f);
  }
  if (!is_of(m, {RopeType::yarn})) {
    refuse_unused(c, {"model.rope_beta_fast", "model.rope_beta_slow", "model.rope_truncate"}, "rope_type = 'yarn'",
                  "rope_type = 'yarn'", f);
  }
  if (!is_of(m, {RopeType::yarn, RopeType::longrope})) {
    refuse_unused(c, {"model.rope_attention_factor"}, "rope_type = 'yarn' and 'longrope'",
                  "rope_type = 'yarn' or 'longrope'", f);
  }
  if (!is_of(m, {RopeType::longrope})) {
    refuse_unused(c, {"model.rope_short_factor", "model.rope_long_factor"}, "rope_type = 'longrope'",
                  "rope_type = 'longrope'", f);
  }
}

std::int64_t head_dim_of(const deck::ModelConfig& m) {
  return m.head_dim > 0 ? m.head_dim : m.hidden_size / std::max<std::int64_t>(m.num_attention_heads, 1);
}

std::int64_t rotated_elements(const deck::ModelConfig& model) {
  deck::ModelConfig m = model;
  m.head_dim = head_dim_of(model);
  return rotated_width(m);
}

void check_rotated_part(const deck::Config& c, deck::Findings& f) {
  const deck::ModelConfig& m = c.model;
  const std::vector<std::string> keys{"model.partial_rotary_factor", "model.head_dim", "model.hidden_size",
                                      "model.num_attention_heads"};
  if (!f.is_valid(keys)) return;
  if (m.partial_rotary_factor != 1.0 && deck::attention_sizes(m).is_compressed) {
    f.error({"model.partial_rotary_factor"},
            "partial_rotary_factor has no effect on compressed keys, which have a part for the rotation of their own",
            "partial_rotary_factor = 1");
  }
  const std::int64_t rotated = rotated_elements(m);
  if (m.partial_rotary_factor < 1.0 && (rotated % 2 != 0 || rotated == 0)) {
    f.error(
        {"model.partial_rotary_factor", "model.head_dim"},
        "partial_rotary_factor rotates " + text(rotated) + " of the " + text(head_dim_of(m)) + " elements of a head",
        "an even number of them, at least 2: the rotary embedding rotates pairs");
  }
  if (m.rope_type == RopeType::dynamic && rotated <= 2 && f.is_valid({"model.rope_type"})) {
    f.error({"model.rope_type", "model.head_dim"}, "rope_type = 'dynamic' changes the base for a single pair of a head",
            "at least 4 rotated elements");
  }
}

void check_factors(const char* key, const std::string& list, const deck::Config& c, deck::Findings& f) {
  const std::int64_t pairs = rotated_elements(c.model) / 2;
  if (!f.is_valid({key, "model.head_dim", "model.partial_rotary_factor"})) return;
  const auto factors = deck::reals(list);
  if (factors && static_cast<std::int64_t>(factors->size()) == pairs &&
      std::ranges::all_of(*factors, [](double x) { return x > 0.0; })) {
    return;
  }
  const std::string found =
      factors ? counted(static_cast<std::int64_t>(factors->size()), "number") : "something else than numbers";
  f.error({key, "model.rope_type"}, std::string(key).substr(6) + " has " + found,
          counted(pairs, "positive number") + " between blanks: one for each rotated pair of a head");
}

void check_scaling(const deck::Config& c, deck::Findings& f) {
  const deck::ModelConfig& m = c.model;
  if (!is_of(m, {RopeType::standard, RopeType::linear}) && m.original_max_position_embeddings == 0 &&
      f.is_valid({"model.original_max_position_embeddings"})) {
    f.error({"model.original_max_position_embeddings", "model.rope_type"},
            "rope scaling needs the length that the model was first trained for", "original_max_position_embeddings");
  }
  if (is_of(m, {RopeType::llama3}) && m.rope_low_freq_factor >= m.rope_high_freq_factor &&
      f.is_valid({"model.rope_low_freq_factor", "model.rope_high_freq_factor"})) {
    f.error({"model.rope_low_freq_factor", "model.rope_high_freq_factor"},
            "rope_low_freq_factor is not less than rope_high_freq_factor", "as in Llama 3.1: 1 and 4");
  }
  if (is_of(m, {RopeType::longrope})) {
    check_factors("model.rope_short_factor", m.rope_short_factor, c, f);
    check_factors("model.rope_long_factor", m.rope_long_factor, c, f);
  }
  if (!is_of(m, {RopeType::yarn})) return;
  if (m.rope_beta_slow >= m.rope_beta_fast && f.is_valid({"model.rope_beta_slow", "model.rope_beta_fast"})) {
    f.error({"model.rope_beta_slow", "model.rope_beta_fast"}, "rope_beta_slow is not less than rope_beta_fast",
            "as in YaRN: 1 and 32");
  }
  if (m.rope_theta <= 1.0 && f.is_valid({"model.rope_theta"})) {
    f.error({"model.rope_theta"}, "wavelengths do not grow", "rope_theta > 1");
  }
}

}  // namespace

void check_positions(const deck::Config& c, deck::Findings& f) {
  if (!f.is_valid({"model.position_embedding_type", "model.rope_type"})) return;
  if (c.model.has_rotary()) {
    check_unused_scaling(c, f);
    check_rotated_part(c, f);
    check_scaling(c, f);
  } else {
    refuse_unused(
        c,
        {"model.rope_theta", "model.rope_type", "model.rope_factor", "model.original_max_position_embeddings",
         "model.rope_low_freq_factor", "model.rope_high_freq_factor", "model.rope_beta_fast", "model.rope_beta_slow",
         "model.rope_attention_factor", "model.rope_truncate", "model.rope_short_factor", "model.rope_long_factor",
         "model.partial_rotary_factor", "model.rope_interleaved"},
        "the rotary embedding", "position_embedding_type = 'rope'", f);
  }
  if (c.model.has_learned_positions()) {
    check_learned(c, f);
  } else {
    refuse_unused(c, {"model.max_position_embeddings"}, "learned positions",
                  "position_embedding_type = 'learned_absolute'; other positions have no limit but sequence_length", f);
  }
}

}  // namespace nanotron::nn
