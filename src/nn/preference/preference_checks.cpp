#include "nanotron/deck/config.hpp"
#include "nanotron/nn/preference/pair_losses.hpp"

namespace nanotron::nn {
namespace {

void check_validation(const deck::Config& c, deck::Findings& f) {
  const auto refuse = [&](bool is_set, const char* key, const char* expected) {
    if (!is_set || !f.is_valid({key})) return;
    f.error({key, "preference.beta"},
            "validation sets are measured in nats per token, and training on pairs reads pairs", expected,
            "evaluate checkpoints with --evaluate and a deck without pairs");
  };
  refuse(!c.data.validation_path.empty(), "data.validation_path", "no validation_path");
  refuse(c.data.validation_fraction > 0.0, "data.validation_fraction", "validation_fraction = 0");
}

void check_pairs(const deck::Config& c, deck::Findings& f) {
  if (c.data.sequences != deck::SequenceKind::pairs) {
    f.error({"preference.beta", "data.sequences"}, "beta > 0 trains on pairs of answers, and sequences are none",
            "sequences = 'pairs', with a data%path that nanotron-pairs wrote", "or beta = 0");
  }
}

}  // namespace

void check_preference(const deck::Config& c, deck::Findings& f) {
  if (!f.is_valid({"preference.beta", "preference.reference", "data.sequences"})) return;
  if (c.preference.beta > 0.0) {
    check_pairs(c, f);
    check_validation(c, f);
    check_objective(c, f);
    return;
  }
  deck::refuse_unused(c, {"preference.reference"}, "training on pairs", "preference%beta > 0", f);
  if (c.data.sequences == deck::SequenceKind::pairs) {
    f.error({"data.sequences", "preference.beta"}, "sequences = 'pairs' are for training on pairs, and beta is 0",
            "preference%beta, for example 0.1", "or sequences = 'documents', to train on both answers alike");
  }
}

}  // namespace nanotron::nn
