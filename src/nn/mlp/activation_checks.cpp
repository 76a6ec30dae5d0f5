#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/nn/checks.hpp"

namespace nanotron::nn {

void check_activation(const deck::Config& c, deck::Findings& f) {
  using deck::HiddenAct;
  if (!f.is_valid({"model.hidden_act"})) return;
  if (c.model.hidden_act != HiddenAct::swiglu_clamped) {
    refuse_unused(c, {"model.swiglu_limit", "model.swiglu_alpha"}, "clamped SwiGLU",
                  "hidden_act = 'swiglu_clamped', or no swiglu_limit and swiglu_alpha", f);
  }
  if (c.model.hidden_act == HiddenAct::xielu && c.precision.reproducible == deck::Reproducible::layout &&
      deck::sum_shards(c).tensor > 1 && c.precision.context_shards > 1 &&
      f.is_valid({"precision.reproducible", "precision.context_shards", "precision.tensor_shards"})) {
    f.error({"precision.context_shards", "precision.tensor_shards"},
            "the gradients of xIELU's scalars are summed over columns and tokens at once",
            "context_shards = 1 or tensor_shards = 1");
  }
}

}  // namespace nanotron::nn
