#include "nanotron/deck/layer_kinds.hpp"

#include <algorithm>
#include <utility>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/later_tokens.hpp"
#include "nanotron/deck/layer_set.hpp"

namespace nanotron::deck {
namespace {

using namespace phrases;

// The layers of `layers` that are in `set`, by their places there.
std::string places_in(const std::string& set, const std::vector<std::int64_t>& layers) {
  const LayerSet of_model(set);
  std::string text;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (of_model.contains(layers[i])) text += (text.empty() ? "" : " ") + std::to_string(i);
  }
  return text.empty() ? "none" : text;
}

}  // namespace

LayerKinds::LayerKinds(const ModelConfig& model) {
  const LayerSet windows(model.window_layers), rotated(model.rope_layers), routed(routed_layers(model));
  for (std::int64_t l = 0; l < stored_layers(model); ++l) {
    const std::int64_t as = std::min(l, model.num_hidden_layers - 1);
    LayerKind kind;
    kind.window = windows.contains(as) ? model.sliding_window : 0;
    kind.is_rotated = model.has_rotary() && rotated.contains(as);
    kind.has_local_theta = kind.is_rotated && kind.window > 0 && model.rope_local_theta > 0.0;
    kind.is_routed = routed.contains(as);
    const auto found = std::ranges::find(kinds_, kind);
    of_layer_.push_back(static_cast<std::size_t>(found - kinds_.begin()));
    if (found == kinds_.end()) {
      kinds_.push_back(kind);
      before_.emplace_back(static_cast<std::size_t>(l) + 1, 0);
    }
    for (std::size_t k = 0; k < kinds_.size(); ++k) {
      before_[k].push_back(before_[k].back() + (k == of_layer_.back() ? 1 : 0));
    }
  }
}

std::int64_t LayerKinds::count(std::size_t kind, std::int64_t begin, std::int64_t end) const {
  const std::vector<std::int64_t>& before = before_[kind];
  return before[static_cast<std::size_t>(end)] - before[static_cast<std::size_t>(begin)];
}

std::vector<std::int64_t> LayerKinds::first_layers() const {
  std::vector<std::int64_t> layers;
  for (std::size_t l = 0; l < of_layer_.size(); ++l) {
    if (of_layer_[l] == layers.size()) layers.push_back(static_cast<std::int64_t>(l));
  }
  return layers;
}

ModelConfig only_layers(const ModelConfig& model, const std::vector<std::int64_t>& layers) {
  ModelConfig m = model;
  m.num_hidden_layers = static_cast<std::int64_t>(layers.size());
  append_layers(m, 0);
  m.window_layers = places_in(model.window_layers, layers);
  m.rope_layers = places_in(model.rope_layers, layers);
  return with_routed_layers(std::move(m), places_in(routed_layers(model), layers));
}

void check_layer_kinds(const Config& c, Findings& f) {
  const ModelConfig& m = c.model;
  check_layer_set("model.window_layers", m.window_layers, c, f);
  check_layer_set("model.rope_layers", m.rope_layers, c, f);
  check_routed_layers(c, f);
  if (!f.is_valid({"model.sliding_window", "model.position_embedding_type"})) return;
  if (m.sliding_window == 0) {
    refuse_unused(c, {"model.window_layers", "model.rope_local_theta"}, "sliding_window", "sliding_window > 0", f);
  }
  if (!m.has_rotary()) {
    refuse_unused(c, {"model.rope_layers", "model.rope_local_theta"}, "the rotary embedding",
                  "position_embedding_type = 'rope'", f);
  }
}

}  // namespace nanotron::deck
