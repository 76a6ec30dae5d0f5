#include "nanotron/nn/checks.hpp"

#include "nanotron/deck/checks/phrases.hpp"
#include "nanotron/deck/config.hpp"

namespace nanotron::nn {

void check_norm(const deck::Config& c, deck::Findings& f) {
  if (!f.is_valid({"model.normalization"})) return;
  if (c.model.normalization == deck::Normalization::rms_norm) {
    refuse_unused(c, {"model.layer_norm_epsilon"}, "LayerNorm", "normalization = 'layer_norm', or rms_norm_eps", f);
  } else if (!c.model.qk_norm) {  // qk_norm is RMSNorm in every model
    refuse_unused(c, {"model.rms_norm_eps"}, "RMSNorm", "normalization = 'rms_norm', or layer_norm_epsilon", f);
  }
}

}  // namespace nanotron::nn
