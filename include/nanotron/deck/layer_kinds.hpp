#pragma once

// Layers of a model may differ, by patterns of the deck (deck/layer_set.hpp). Layers of one kind are alike: they have
// the same shapes and costs.

#include <cstdint>
#include <string>
#include <vector>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/keys/model.hpp"

namespace nanotron::deck {

/// What a layer may have that others of its model do not have.
struct LayerKind {
  std::int64_t window = 0;       // model%sliding_window, or 0: none
  bool is_rotated = false;       // its queries and keys, by RoPE
  bool has_local_theta = false;  // rotated with model%rope_local_theta, without scaling
  bool is_routed = false;        // several feed-forward networks, to which tokens are sent; else a dense one
  bool operator==(const LayerKind&) const = default;
};

class LayerKinds {
 public:
  explicit LayerKinds(const ModelConfig& model);

  /// Each kind once, in the order of its first layer.
  const std::vector<LayerKind>& all() const { return kinds_; }
  /// Which of all() a layer is.
  std::size_t of(std::int64_t layer) const { return of_layer_[static_cast<std::size_t>(layer)]; }
  const LayerKind& operator[](std::int64_t layer) const { return kinds_[of(layer)]; }
  /// How many of the layers [begin, end) are of a kind.
  std::int64_t count(std::size_t kind, std::int64_t begin, std::int64_t end) const;
  /// The first layer of each kind, ascending.
  std::vector<std::int64_t> first_layers() const;

 private:
  std::vector<LayerKind> kinds_;
  std::vector<std::size_t> of_layer_;
  std::vector<std::vector<std::int64_t>> before_;  // per kind: how many of its layers are before each layer
};

/// The feed-forward block of a layer of this kind.
FeedForwardSizes feed_forward_sizes(const ModelConfig& model, const LayerKind& kind);

/// The layers whose feed-forward block is routed (deck/layer_set.hpp): none of a dense model.
std::string routed_layers(const ModelConfig& model);
ModelConfig with_routed_layers(ModelConfig model, const std::string& layers);
std::int64_t routed_layer_count(const ModelConfig& model);

/// The model of these layers only, in this order.
ModelConfig only_layers(const ModelConfig& model, const std::vector<std::int64_t>& layers);

/// Errors at sets of layers that the model does not have, and at keys of layers with what no layer has.
void check_layer_kinds(const Config& config, Findings& findings);
/// Those at routed_layers.
void check_routed_layers(const Config& config, Findings& findings);
/// An error at `key` where some layers are routed and some are dense, which `what` does not allow.
void refuse_two_networks(const Config& config, Findings& findings, const std::string& key, const std::string& what,
                         const std::string& expected);

}  // namespace nanotron::deck
