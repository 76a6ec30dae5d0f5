// Norm, positions and feed-forward network of a model: keys that do not go together, and keys that would do nothing.

#include <utility>

#include "config_checks.hpp"

namespace nanotron::deck::detail {
namespace {

/// A key that differs from its default, of a choice that the deck has not made.
struct Unused {
  const char* key;
  bool differs;
};

void refuse_unused(std::initializer_list<Unused> keys, const char* of, const std::string& expected, Findings& f) {
  for (const auto& [key, differs] : keys) {
    if (!differs || !f.trusted({key})) continue;
    f.error({key}, std::string(key).substr(6) + " is of " + of + ", which this model does not have", expected);
    return;
  }
}

void check_norm(const ModelConfig& m, Findings& f) {
  if (!f.trusted({"model.normalization"})) return;
  const ModelConfig none;
  if (m.normalization == Normalization::rms_norm) {
    refuse_unused({{"model.layer_norm_epsilon", m.layer_norm_epsilon != none.layer_norm_epsilon}}, "LayerNorm",
                  "normalization = 'layer_norm', or rms_norm_eps", f);
  } else {
    refuse_unused({{"model.rms_norm_eps", m.rms_norm_eps != none.rms_norm_eps && !m.qk_norm}}, "RMSNorm",
                  "normalization = 'rms_norm', or layer_norm_epsilon", f);
  }
}

void check_learned_positions(const Config& c, Findings& f) {
  const ModelConfig& m = c.model;
  const ModelConfig none;
  refuse_unused(
      {{"model.rope_theta", m.rope_theta != none.rope_theta}, {"model.rope_type", m.rope_type != RopeType::standard}},
      "the rotary embedding", "position_embedding_type = 'rope'", f);
  if (!f.trusted({"model.max_position_embeddings", "data.sequence_length"})) return;
  if (m.max_position_embeddings < c.data.sequence_length) {
    f.error({"model.max_position_embeddings", "data.sequence_length"},
            "max_position_embeddings = " + text(m.max_position_embeddings) + " learned positions for sequences of " +
                text(c.data.sequence_length) + " tokens",
            "at least sequence_length");
  } else if (c.parallel.tp > m.max_position_embeddings && f.trusted({"parallel.tp"})) {
    f.error(
        {"parallel.tp", "model.max_position_embeddings"},
        "tp = " + text(c.parallel.tp) + " is more than the " + text(m.max_position_embeddings) + " learned positions",
        "tp <= " + text(m.max_position_embeddings));
  }
}

void check_rotary(const ModelConfig& m, Findings& f) {
  const ModelConfig none;
  const bool llama3 = m.rope_type == RopeType::llama3, yarn = m.rope_type == RopeType::yarn, scaled = llama3 || yarn;
  refuse_unused({{"model.max_position_embeddings", m.max_position_embeddings != 0}}, "learned positions",
                "position_embedding_type = 'learned_absolute'; rotated ones have no limit but sequence_length", f);
  refuse_unused({{"model.rope_factor", !scaled && m.rope_factor != none.rope_factor},
                 {"model.original_max_position_embeddings", !scaled && m.original_max_position_embeddings != 0}},
                "rope scaling", "rope_type = 'llama3' or 'yarn'", f);
  refuse_unused({{"model.rope_low_freq_factor", !llama3 && m.rope_low_freq_factor != none.rope_low_freq_factor},
                 {"model.rope_high_freq_factor", !llama3 && m.rope_high_freq_factor != none.rope_high_freq_factor}},
                "rope_type = 'llama3'", "rope_type = 'llama3'", f);
  refuse_unused({{"model.rope_beta_fast", !yarn && m.rope_beta_fast != none.rope_beta_fast},
                 {"model.rope_beta_slow", !yarn && m.rope_beta_slow != none.rope_beta_slow},
                 {"model.rope_attention_factor", !yarn && m.rope_attention_factor != none.rope_attention_factor}},
                "rope_type = 'yarn'", "rope_type = 'yarn'", f);
  if (scaled && m.original_max_position_embeddings == 0 && f.trusted({"model.original_max_position_embeddings"})) {
    f.error({"model.original_max_position_embeddings", "model.rope_type"},
            "rope scaling needs the length that the model was first trained for", "original_max_position_embeddings");
  }
  if (llama3 && m.rope_low_freq_factor >= m.rope_high_freq_factor &&
      f.trusted({"model.rope_low_freq_factor", "model.rope_high_freq_factor"})) {
    f.error({"model.rope_low_freq_factor", "model.rope_high_freq_factor"},
            "rope_low_freq_factor is not less than rope_high_freq_factor", "as in Llama 3.1: 1 and 4");
  }
  if (yarn && m.rope_beta_slow >= m.rope_beta_fast && f.trusted({"model.rope_beta_slow", "model.rope_beta_fast"})) {
    f.error({"model.rope_beta_slow", "model.rope_beta_fast"}, "rope_beta_slow is not less than rope_beta_fast",
            "as in YaRN: 1 and 32");
  }
  if (yarn && m.rope_theta <= 1.0 && f.trusted({"model.rope_theta"})) {
    f.error({"model.rope_theta"}, "wavelengths do not grow", "rope_theta > 1");
  }
}

// The kernels of experts are those of SwiGLU.
void check_experts(const ModelConfig& m, Findings& f) {
  if (m.moe.num_experts == 0 || !f.trusted({"moe.num_experts"})) return;
  if (m.hidden_act != HiddenAct::silu && f.trusted({"model.hidden_act"})) {
    f.error({"model.hidden_act", "moe.num_experts"}, "experts are gated networks with silu", "hidden_act = 'silu'",
            "or num_experts = 0");
  }
  if (m.mlp_bias && f.trusted({"model.mlp_bias"})) {
    f.error({"model.mlp_bias", "moe.num_experts"}, "experts have no biases", "mlp_bias = .false.",
            "or num_experts = 0");
  }
}

}  // namespace

void check_architecture(const Config& c, Findings& f) {
  check_norm(c.model, f);
  if (f.trusted({"model.position_embedding_type", "model.rope_type"})) {
    if (c.model.has_learned_positions()) {
      check_learned_positions(c, f);
    } else {
      check_rotary(c.model, f);
    }
  }
  check_experts(c.model, f);
}

}  // namespace nanotron::deck::detail
