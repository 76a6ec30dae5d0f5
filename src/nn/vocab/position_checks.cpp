#include "nanotron/nn/checks.hpp"

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config.hpp"

namespace nanotron::nn {
namespace {

using deck::RopeType;
using namespace deck::phrases;

void check_learned(const deck::Config& c, deck::Findings& f) {
  const deck::ModelConfig& m = c.model;
  refuse_unused(c,
                {"model.rope_theta", "model.rope_type", "model.rope_factor", "model.original_max_position_embeddings",
                 "model.rope_low_freq_factor", "model.rope_high_freq_factor", "model.rope_beta_fast",
                 "model.rope_beta_slow", "model.rope_attention_factor"},
                "the rotary embedding", "position_embedding_type = 'rope'", f);
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

void check_rotary(const deck::Config& c, deck::Findings& f) {
  const deck::ModelConfig& m = c.model;
  const bool llama3 = m.rope_type == RopeType::llama3, yarn = m.rope_type == RopeType::yarn, scaled = llama3 || yarn;
  refuse_unused(c, {"model.max_position_embeddings"}, "learned positions",
                "position_embedding_type = 'learned_absolute'; rotated ones have no limit but sequence_length", f);
  if (!scaled) {
    refuse_unused(c, {"model.rope_factor", "model.original_max_position_embeddings"}, "rope scaling",
                  "rope_type = 'llama3' or 'yarn'", f);
  }
  if (!llama3) {
    refuse_unused(c, {"model.rope_low_freq_factor", "model.rope_high_freq_factor"}, "rope_type = 'llama3'",
                  "rope_type = 'llama3'", f);
  }
  if (!yarn) {
    refuse_unused(c, {"model.rope_beta_fast", "model.rope_beta_slow", "model.rope_attention_factor"},
                  "rope_type = 'yarn'", "rope_type = 'yarn'", f);
  }
  if (scaled && m.original_max_position_embeddings == 0 && f.is_valid({"model.original_max_position_embeddings"})) {
    f.error({"model.original_max_position_embeddings", "model.rope_type"},
            "rope scaling needs the length that the model was first trained for", "original_max_position_embeddings");
  }
  if (llama3 && m.rope_low_freq_factor >= m.rope_high_freq_factor &&
      f.is_valid({"model.rope_low_freq_factor", "model.rope_high_freq_factor"})) {
    f.error({"model.rope_low_freq_factor", "model.rope_high_freq_factor"},
            "rope_low_freq_factor is not less than rope_high_freq_factor", "as in Llama 3.1: 1 and 4");
  }
  if (yarn && m.rope_beta_slow >= m.rope_beta_fast && f.is_valid({"model.rope_beta_slow", "model.rope_beta_fast"})) {
    f.error({"model.rope_beta_slow", "model.rope_beta_fast"}, "rope_beta_slow is not less than rope_beta_fast",
            "as in YaRN: 1 and 32");
  }
  if (yarn && m.rope_theta <= 1.0 && f.is_valid({"model.rope_theta"})) {
    f.error({"model.rope_theta"}, "wavelengths do not grow", "rope_theta > 1");
  }
}

}  // namespace

void check_positions(const deck::Config& c, deck::Findings& f) {
  if (!f.is_valid({"model.position_embedding_type", "model.rope_type"})) return;
  if (c.model.has_learned_positions()) {
    check_learned(c, f);
  } else {
    check_rotary(c, f);
  }
}

}  // namespace nanotron::nn
