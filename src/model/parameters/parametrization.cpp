#include "nanotron/model/parameters/parametrization.hpp"

#include <cmath>

#include "nanotron/deck/attention_sizes.hpp"
#include "nanotron/deck/config.hpp"

namespace nanotron::model {

Scaling scaling_of(const deck::ModelConfig& m, Role role) {
  // A layer adds two projections to the hidden states, hence 2 L (Shoeybi et al. 2019, section 4).
  const double deviation = role == Role::residual
                               ? m.initializer_range / std::sqrt(2.0 * static_cast<double>(m.num_hidden_layers))
                               : m.initializer_range;
  if (m.parametrization == deck::Parametrization::standard || role == Role::embedding) return {deviation, 1.0};
  const double ratio = static_cast<double>(m.hidden_size) / static_cast<double>(m.base_hidden_size);
  return {deviation / (role == Role::output ? ratio : std::sqrt(ratio)), ratio};
}

double adamw_rate_factor(double fan_in_ratio) { return 1.0 / fan_in_ratio; }
double muon_rate_factor(double fan_in_ratio) { return 1.0 / std::sqrt(fan_in_ratio); }

void check_parametrization(const deck::Config& c, deck::Findings& f) {
  const deck::ModelConfig& m = c.model;
  if (!f.is_valid({"model.parametrization", "model.base_hidden_size"})) return;
  if (m.parametrization == deck::Parametrization::standard) {
    if (m.base_hidden_size > 0) {
      f.error({"model.base_hidden_size"}, "base_hidden_size has no effect with parametrization = 'standard'",
              "parametrization = 'mup', or no base_hidden_size");
    }
    return;
  }
  if (m.base_hidden_size == 0) {
    f.error({"model.parametrization"}, "parametrization = 'mup' scales from a base model, and base_hidden_size is 0",
            "base_hidden_size of the model that initializer_range and learning_rate were tuned for");
  }
  if (deck::attention_sizes(m).is_compressed) {
    f.error(
        {"model.parametrization"},
        "parametrization = 'mup' scales with hidden_size, but compressed queries, keys and values (MLA) have widths "
        "of their own",
        "parametrization = 'standard'");
  }
  if (m.tie_word_embeddings && f.is_valid({"model.tie_word_embeddings"})) {
    f.error(
        {"model.tie_word_embeddings", "model.parametrization"},
        "parametrization = 'mup' gives head and embedding their own initial deviation and learning rate; if tied, they "
        "are one tensor",
        "tie_word_embeddings = .false., or parametrization = 'standard'");
  }
}

}  // namespace nanotron::model
