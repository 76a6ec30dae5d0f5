#pragma once

// Every parameter of the model, under the name it has in a checkpoint, and where this rank's shard of it
// lies in the flat buffers. About a dozen entries, whatever the number of layers; and three for each expert.
//
// Order in the flat buffers:  vectors | embedding | layer 0 | ... | layer L-1 | head | experts of layer 0 | ... | of
// L-1 so that backward completes gradients from the end of the buffer towards its beginning. The vectors are the norms
// and biases of all layers: few, not decayed, and never sharded over replicas. q, k, v (their biases too) as well as
// gate and up lie one behind the other: each of these is one product. Learned positions lie behind the words.
//
// A pipeline stage has the layers of its virtual stages, the embedding with the first layer of the model, final norm
// and head with the last; where head and embedding are tied, the stage of the last layer has the embedding too, to use
// but not to own.
//
// Parameters that the same ranks hold are a section: all but experts, and, after them, experts, of which a rank has
// those of its place in the expert-parallel group. A dense model has one section.

#include <optional>
#include <vector>

#include "nanotron/deck/config.hpp"
#include "nanotron/nn/attention/heads.hpp"
#include "nanotron/nn/parameters/parameter.hpp"

namespace nanotron::model {

/// A part of the flat buffers that is gathered and reduced at once where data-parallel ranks shard it.
struct Unit {
  Range range;   // its size is a multiple of 64 x the pieces of its section
  int uses = 1;  // backward adds to its gradient so many times: twice for tied embeddings
  comm::Holders holders = comm::Holders::data_parallel;
};

/// Units that the same ranks hold, one after the other, and the 1-D parameters before them.
struct Section {
  comm::Holders holders = comm::Holders::data_parallel;
  Range flat;                    // of the flat space
  Range vectors;                 // of that, at its beginning; may be empty
  Range units;                   // their numbers
  index_t first_layer_unit = 0;  // the unit of the first layer here
};

/// As a unit: none.
inline constexpr index_t no_unit = -1;

/// The part of a model that a rank has, and how its units divide.
struct TableLayout {
  int tp_size = 1, tp_rank = 0;
  deck::TpMode tp_mode = deck::TpMode::all_reduce;
  std::vector<Range> layers{};     // held, ascending and apart; empty: all
  int tensor_shards = 0;           // a dimension is cut between so many parts alone, a multiple of tp_size; 0: tp_size
  int ep_size = 1, ep_rank = 0;
  int pieces = 1, expert_pieces = 1;  // into which units divide
};

/// Of a feed-forward network: gate, which up lies behind, or up where there is no gate; and down.
struct MlpSpecs {
  const nn::ParameterSpec &first, &down;
  index_t first_rows = 0;  // of gate and up
};

struct ParameterTable {
  TableLayout layout;
  std::vector<nn::ParameterSpec> specs;
  nn::HeadShard heads{};
  Range intermediate{};  // of intermediate_size; of a mixture of experts that of the shared one
  Range expert_width{};  // of moe_intermediate_size
  Range experts{};       // held here
  Range vocabulary{};    // of vocab_size
  Range positions{};     // of max_position_embeddings, where they are learned
  index_t size = 0;         // elements of a flat buffer
  bool has_embedding = true;  // to look up tokens
  bool has_head = true;       // final norm and output head
  Range vectors{};          // the 1-D parameters, before the matrices
  std::vector<Unit> units{};  // the matrices: embedding, layers, head, as far as they are held; then experts
  std::vector<Section> sections{};

  index_t layers = 0;       // held
  bool is_tied = false;     // the head's weights are those of the embedding
  std::size_t first_expert_spec = 0;  // gate, up and down of each expert of the layer, after all others

  const Section& dense() const { return sections.front(); }
  index_t embedding_unit() const { return 0; }
  index_t layer_unit(index_t local_layer) const { return dense().first_layer_unit + local_layer; }
  index_t head_unit() const { return is_tied ? embedding_unit() : dense().units.end - 1; }
  bool is_layer(index_t unit) const { return unit >= layer_unit(0) && unit < layer_unit(layers); }
  const Unit& unit(index_t number) const { return units[static_cast<std::size_t>(number)]; }

  /// What backward adds to, one after the other: a unit of the dense section, which stands for the experts of its layer too;
  /// or the head, where its weights are the embedding's.
  index_t sources() const { return dense().units.size() + (is_tied ? 1 : 0); }
  index_t head_source() const { return is_tied ? dense().units.size() : head_unit(); }
  /// Of the section; no_unit where a source adds to none.
  index_t unit_of(index_t source, const Section& section) const;
  const nn::ParameterSpec& operator[](const std::string& name) const;  // error when there is none
  bool contains(const std::string& name) const;
  MlpSpecs mlp(const std::string& prefix) const;
  MlpSpecs expert(index_t number) const;
  index_t logical_parameters() const;  // of the whole model
};

/// model must be resolved (heads, head_dim, vocab_size filled in). A pure function: no communication.
ParameterTable make_parameter_table(const deck::ModelConfig& model, const TableLayout& layout = {});

/// What this rank owns of the flat buffers, neighbours merged: the union over the tensor-parallel group holds
/// each logical element once.
std::vector<Range> owned_ranges(const ParameterTable& table);

/// The whole of the flat buffers, cut where weight decay begins or ends to apply or the fan-in ratio changes.
struct UpdateRange {
  Range range;
  bool decays = false;
  double fan_in_ratio = 1.0;
};
std::vector<UpdateRange> update_ranges(const ParameterTable& table);

/// Overwrites the master weights, or what `held` says of them, with their initial values. An element depends on the seed, the tensor's name
/// and its index in the logical tensor alone, so every grid starts from the same weights. Normal values are
/// rounded to float in every precision. Deviations: model/parametrization.hpp.
template <class M>
void initialise(const ParameterTable& table, std::int64_t seed, const Vector<M>& master, const nn::BufferLayout& held);

}  // namespace nanotron::model
