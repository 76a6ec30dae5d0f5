#pragma once

// Every parameter of the model: its name in a checkpoint and the offset of this rank's shard in the flat buffers.
// About a dozen entries for any number of layers, plus three per expert.
//
// Order in the flat buffers:
//   1-D parameters | embedding | layer 0 | ... | layer L-1 | head || experts of layer 0 | ... | experts of layer L-1
// so that backward completes the gradients of a section from its end to its beginning. The 1-D parameters are the norm
// weights and biases of all layers: few, not decayed, and never sharded over data-parallel ranks. q, k, v (and their
// biases) are contiguous, so one GEMM computes them; so are gate and up. Learned positions follow the token embedding.
//
// A pipeline stage stores the layers of its virtual stages; the embedding with the model's first layer; the final norm
// and the head with its last. With tied embeddings the stage of the last layer stores the embedding too, but does not
// own it.
//
// A section is the parameters that the same ranks store: first all but experts; then the experts, where a rank stores
// those of its rank in the expert-parallel group. A dense model has one section. With adapters (model/adapters) that
// section is frozen, and a second one has the adapters of the layers.

#include <algorithm>
#include <optional>
#include <vector>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/keys/lora.hpp"
#include "nanotron/deck/keys/model.hpp"
#include "nanotron/deck/keys/parallel.hpp"
#include "nanotron/nn/attention/heads.hpp"
#include "nanotron/nn/parameters/parameter.hpp"

namespace nanotron::model {

/// The unit of ZeRO (an FSDP unit): the range of the flat buffers that is gathered and reduced at once.
struct Unit {
  Range range;   // its size is a multiple of 64 x the shards of its section
  int uses = 1;  // how often backward adds to its gradient: more than once where both ends of the model use it
  comm::ReplicaSet replicas = comm::ReplicaSet::data_parallel;
};

inline constexpr index_t no_unit = -1;  // a unit number that means none

/// Units that the same ranks store, contiguous, and the 1-D parameters before them.
struct Section {
  comm::ReplicaSet replicas = comm::ReplicaSet::data_parallel;
  Range flat;                            // in the flat space
  Range params_1d;                       // the 1-D parameters, at its beginning; may be empty
  Range units;                           // unit numbers
  index_t first_layer_unit = 0;          // the unit of the first layer here that has one
  std::vector<index_t> unit_of_layer{};  // of each layer stored here; no_unit where the layer has none
  bool is_frozen = false;                // its parameters never change: no gradients, no moments
};

/// Which part of a model a rank stores, and into how many shards its units divide.
struct TableLayout {
  int tp_size = 1, tp_rank = 0;
  deck::TpMode tp_mode = deck::TpMode::all_reduce;
  std::vector<Range> layers{};  // stored here, ascending and disjoint; empty: all
  int tensor_shards = 0;        // parts at whose borders dimensions are sharded, a multiple of tp_size; 0: tp_size
  int ep_size = 1, ep_rank = 0;
  bool ep_spans_tp = false;  // experts are not sharded over tp: its ranks share them
  int shards = 1;            // of a unit of the data-parallel replica set
  deck::LoraConfig lora{};

  int tensor_ranks_of(comm::ReplicaSet replicas) const;  // over which parameters are sharded
  int shards_of(comm::ReplicaSet replicas) const;        // of their units
};

/// Specs of a feed-forward network. first: gate, followed by up; or up if there is no gate.
struct MlpSpecs {
  const nn::ParameterSpec &first, &down;
  index_t first_rows = 0;  // of gate and up together
};

struct ParameterTable {
  TableLayout layout;
  std::vector<nn::ParameterSpec> specs;
  nn::HeadShard heads{};
  Range intermediate{};             // of intermediate_size; if no layer is dense, as shared_width
  Range shared_width{};             // of the shared expert's width
  Range expert_width{};             // of moe_intermediate_size
  Range experts{};                  // stored here
  Range vocabulary{}, positions{};  // of vocab_size, and of max_position_embeddings, where they are learned
  index_t size = 0;                 // elements of a flat buffer
  bool has_embedding = true;        // to look up tokens
  bool has_head = true;             // final norm and output head, and appended layers
  Range params_1d{};                // the 1-D parameters, before the 2-D ones
  std::vector<Unit> units{};        // the 2-D parameters stored here: embedding, layers, head; then experts
  std::vector<Section> sections{};

  index_t layers = 0, appended_layers = 0;  // stored here: all, and how many of them are appended, the last ones
  std::vector<index_t> layer_numbers{};     // of these layers, ascending
  bool is_tied = false;                     // tied embeddings: the head uses the embedding's weights
  std::size_t first_expert_spec = 0;        // gate, up and down of each expert follow all other specs

  const Section& dense() const { return sections.front(); }
  const Section& section(comm::ReplicaSet replicas) const {
    return replicas == dense().replicas ? dense() : sections.back();
  }
  index_t embedding_unit() const { return 0; }
  index_t layer_unit(index_t local_layer) const { return dense().first_layer_unit + local_layer; }
  index_t head_unit() const { return is_tied ? embedding_unit() : dense().units.end - 1; }
  bool has_frozen() const { return dense().is_frozen; }
  bool is_layer(index_t unit) const { return unit >= layer_unit(0) && unit < layer_unit(layers); }
  /// Index among the layers stored here of one of them.
  index_t local_layer(index_t number) const;
  const Unit& unit(index_t number) const { return units[static_cast<std::size_t>(number)]; }

  /// A source is what backward completes at once: a unit of the dense section with the experts of its layer; a tied
  /// head; the embedding that appended layers look up.
  index_t sources() const { return dense().units.size() + uses_at_end(); }
  index_t head_source() const { return is_tied ? dense().units.size() : head_unit(); }
  index_t appended_embedding_source() const { return dense().units.size() + (is_tied ? 1 : 0); }
  // How often what follows the last layer adds to the embedding here; whether this source does; whether both ends do.
  int uses_at_end() const { return (has_head && is_tied ? 1 : 0) + (appended_layers > 0 ? 1 : 0); }
  bool is_of_end(index_t source) const { return source >= dense().units.size(); }
  bool is_shared() const { return has_embedding && uses_at_end() > 0; }
  index_t final_norm_source() const { return appended_layers > 0 ? appended_embedding_source() : head_source(); }
  /// The unit of the section that a source adds to; no_unit where there is none.
  index_t unit_of(index_t source, const Section& section) const;
  const nn::ParameterSpec& operator[](const std::string& name) const;  // an internal error when there is none
  bool contains(const std::string& name) const;
  MlpSpecs mlp(const std::string& prefix) const;
  MlpSpecs expert(index_t number) const;
  index_t logical_parameters() const;  // elements of the whole model
  index_t trained_size() const;        // elements here of sections that are not frozen
};

/// model must be resolved (heads, head_dim, vocab_size set). A pure function. Of a whole config: all on one rank.
ParameterTable make_parameter_table(const deck::ModelConfig& model, const TableLayout& layout = {});
ParameterTable make_parameter_table(const deck::Config& config);

/// The ranges of the flat buffers that this rank owns, adjacent ones merged. The union over the tensor-parallel
/// group has each logical element once.
std::vector<Range> owned_ranges(const ParameterTable& table);

/// All of the flat buffers, split wherever weight decay or the fan-in ratio changes.
struct UpdateRange {
  Range range;
  bool decays = false;
  double fan_in_ratio = 1.0;
};
std::vector<UpdateRange> update_ranges(const ParameterTable& table);

/// Overwrites the master weights stored in `held` with their initial values. An element depends only on the seed, the
/// tensor's name and its index in the logical tensor, so every grid starts from the same weights. Random values are
/// rounded to float in every precision. Deviations: model/parameters/parametrization.hpp.
template <class M>
void initialise(const ParameterTable& table, std::int64_t seed, const Vector<M>& master, const nn::BufferLayout& held);

}  // namespace nanotron::model
