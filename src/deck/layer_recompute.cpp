#include "nanotron/deck/layer_recompute.hpp"

#include "nanotron/deck/config.hpp"

namespace nanotron::deck {

std::string recompute_text(const ParallelConfig& p, std::int64_t layers) {
  const std::string how = p.recompute == Recompute::none        ? "none"
                          : p.recompute == Recompute::selective ? "selective"
                                                                : "full";
  const std::int64_t count = LayerSet(p.recompute_layers).count(layers);
  if (p.recompute == Recompute::none || count == layers) return how;
  return how + " in " + std::to_string(count) + " of " + std::to_string(layers) + " layers";
}

bool recomputes_all(const Config& c, const std::string& layers, const Findings& f) {
  if (c.parallel.recompute != Recompute::full || !f.is_valid({"parallel.recompute_layers", "model.num_hidden_layers"}))
    return false;
  const LayerSet some(layers);
  const LayerRecompute recompute(c.parallel);
  for (std::int64_t l = 0; l < c.model.num_hidden_layers; ++l) {
    if (some.contains(l) && recompute.of(l) != Recompute::full) return false;
  }
  return true;
}

// A stage of training may have its own recompute.
void check_recompute(const Config& c, Findings& f) {
  check_layer_set("parallel.recompute_layers", c.parallel.recompute_layers, c, f);
  if (c.parallel.recompute != Recompute::none || !c.data.stages.empty() || c.run_of) return;
  if (!f.is_valid({"parallel.recompute", "parallel.recompute_layers"}) || c.parallel.recompute_layers == "all") return;
  f.error({"parallel.recompute_layers", "parallel.recompute"}, "recompute = 'none', so that no layer recomputes",
          "recompute = 'selective' or 'full'", "or recompute_layers = 'all', its default");
}

}  // namespace nanotron::deck
