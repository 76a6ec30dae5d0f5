#include "nanotron/parallel/pipeline/pipeline_partition.hpp"

#include <algorithm>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config.hpp"

namespace nanotron::parallel {
namespace {

using namespace deck::phrases;

void check_stage_layers(const deck::Config& c, deck::Findings& f) {
  const std::vector<std::string> keys{"parallel.pp_layers"};
  const std::int64_t stages = deck::pipeline_stages(c.parallel), layers = c.model.num_hidden_layers;
  if (c.parallel.pp_layers.empty() || !f.is_valid({keys[0], "parallel.pp", "model.num_hidden_layers"})) return;
  const std::string expected = counted(stages, "number") + " whose sum is " + text(layers);
  const auto counts = layer_counts(c.parallel.pp_layers);
  if (!counts) {
    f.error(keys, deck::quoted(c.parallel.pp_layers) + " is not a list of layer counts, at least 1 per stage",
            expected);
    return;
  }
  std::int64_t sum = 0;
  for (const std::int64_t count : *counts) sum += std::min(count, std::int64_t{1} << 40);
  if (static_cast<std::int64_t>(counts->size()) != stages || sum != layers) {
    f.error(keys,
            "pp_layers has " + counted(static_cast<std::int64_t>(counts->size()), "stage") + " with " +
                counted(sum, "layer") + "; the pipeline has " + counted(stages, "stage") + " and the model " +
                counted(layers, "layer"),
            expected,
            "or leave it empty, --set parallel.pp_layers= : pp_cut then splits the layers for this grid; a "
            "deck.nml has the split of its own run");
  }
}

}  // namespace

void check_pipeline(const deck::Config& c, deck::Findings& f) {
  const deck::ParallelConfig& p = c.parallel;
  if (p.pp == 0) return;  // resolve() chooses it and checks again
  check_stage_layers(c, f);
  const std::int64_t virtual_stages = deck::virtual_stages(p), layers = c.model.num_hidden_layers;
  if (p.pp > 1 && deck::pipeline_stages(p) > layers &&
      f.is_valid({"parallel.pp", "parallel.pp_chunks", "parallel.pp_schedule", "model.num_hidden_layers"})) {
    f.error({"parallel.pp", "model.num_hidden_layers"},
            "pp = " + text(p.pp) +
                (virtual_stages > 1 ? " with " + text(virtual_stages) + " virtual stages per rank" : "") + " needs " +
                text(deck::pipeline_stages(p)) + " layers, one per stage; the model has " + text(layers),
            at_most("pp", std::max<std::int64_t>(1, layers / virtual_stages)),
            virtual_stages > 1 ? "or pp_schedule = '1f1b', which needs one layer per rank" : "");
  }
  if (p.pp > 1 && p.pp_schedule == deck::PpSchedule::zero_bubble && p.recompute != deck::Recompute::none &&
      f.is_valid({"parallel.recompute", "parallel.pp_schedule"})) {
    f.error({"parallel.recompute", "parallel.pp_schedule"},
            "pp_schedule = 'zero_bubble' computes the weight gradients later, from activations that "
            "recomputation does not keep",
            "recompute = 'none'", "or pp_schedule = '1f1b'");
  }
  if (p.pp > 1 && p.pp_schedule == deck::PpSchedule::zero_bubble && p.offload_layers > 0 &&
      f.is_valid({"parallel.offload_layers", "parallel.pp_schedule"})) {
    f.error(
        {"parallel.offload_layers", "parallel.pp_schedule"},
        "pp_schedule = 'zero_bubble' computes the weight gradients later, from activations that have left the device",
        "offload_layers = 0", "or pp_schedule = '1f1b'");
  }
  if (p.pp > 1 && p.pp_schedule == deck::PpSchedule::zero_bubble && p.mlp_tile > 0 &&
      c.model.hidden_act == deck::HiddenAct::xielu &&
      f.is_valid({"parallel.mlp_tile", "parallel.pp_schedule", "model.hidden_act"})) {
    f.error({"parallel.mlp_tile", "parallel.pp_schedule", "model.hidden_act"},
            "pp_schedule = 'zero_bubble' computes backward of xIELU in tiles twice, and with it the gradients of its "
            "scalars",
            "mlp_tile = 0", "or pp_schedule = '1f1b'");
  }
}

}  // namespace nanotron::parallel
