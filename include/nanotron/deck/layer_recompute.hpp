#pragma once

// Which layers recompute activations: parallel%recompute in those of parallel%recompute_layers, nothing in the others.
// For example the first four layers of each of two stages of 16:
//
//   recompute = 'full'  recompute_layers = '0-3 16-19'
//
// (Megatron-LM: --recompute-granularity full --recompute-method block --recompute-num-layers 4).

#include <string>

#include "nanotron/deck/keys/parallel.hpp"
#include "nanotron/deck/layer_set.hpp"

namespace nanotron::deck {

class LayerRecompute {
 public:
  LayerRecompute(Recompute how = Recompute::none, const std::string& layers = "all") : how_(how), layers_(layers) {}
  explicit LayerRecompute(const ParallelConfig& p) : LayerRecompute(p.recompute, p.recompute_layers) {}

  Recompute how() const { return how_; }
  /// Of a layer of the model.
  Recompute of(std::int64_t layer) const { return layers_.contains(layer) ? how_ : Recompute::none; }
  /// Whether one of the layers [begin, end) recomputes.
  bool any(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t l = begin; l < end; ++l) {
      if (of(l) != Recompute::none) return true;
    }
    return false;
  }

 private:
  Recompute how_;
  LayerSet layers_;
};

/// "full", or "full in 12 of 48 layers".
std::string recompute_text(const ParallelConfig& parallel, std::int64_t layers);

/// Whether all of these layers (deck/layer_set.hpp) are computed again as a whole; false with errors at the keys of it.
bool recomputes_all(const Config& config, const std::string& layers, const Findings& findings);

/// Checks parallel%recompute_layers.
void check_recompute(const Config& config, Findings& findings);

}  // namespace nanotron::deck
