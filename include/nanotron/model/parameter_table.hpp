#pragma once

// Every parameter of the model, under the name it has in a checkpoint, and where this rank's shard of it
// lies in the flat buffers. About a dozen entries, whatever the number of layers; and three for each expert.
//
// Order in the flat buffers:  vectors | embedding | layer 0 | ... | layer L-1 | head | experts of layer 0 | ... | of
// L-1 so that backward completes gradients from the end of the buffer towards its beginning. The vectors are the norms
// and biases of all layers: few, not decayed, and never sharded over replicas. q, k, v (their biases too) as well as
// gate and up lie one behind the other: each of these is one product. Learned positions lie behind the words.
//
// A pipeline stage has the layers of its chunks, the embedding with the first layer of the model, final norm and
// head with the last; where head and embedding are tied, the stage of the last layer has the embedding too, to use
// but not to own.
//
// Experts lie behind all else since other ranks hold the same ones: the two parts are sections. Of the experts of a
// layer a rank has those of its place in the expert-parallel group.

#include <optional>
#include <vector>

#include "nanotron/deck/config.hpp"
#include "nanotron/nn/attention/heads.hpp"
#include "nanotron/nn/parameters/parameter.hpp"

namespace nanotron::model {

/// A part of the flat buffers that is gathered and reduced at once where replicas shard it.
struct Unit {
  Range range;   // its size is a multiple of 64 x shards
  int uses = 1;  // backward adds to its gradient so many times: twice for tied embeddings
  nn::Holders holders = nn::Holders::replicas;
};

/// Units that the same ranks hold, one behind the other, and what lies in front of them.
struct Section {
  Range flat;     // of the flat space
  Range vectors;  // of that, in front; may be empty
  Range units;    // their numbers
};

/// The place among the ranks that share the experts of a layer, and how many ranks share the matrices of these.
struct ExpertPlace {
  int size = 1, rank = 0;
  int shards = 1;
};

/// Of a feed-forward network: gate, which up lies behind, or up where there is no gate; and down.
struct MlpSpecs {
  const nn::ParameterSpec &first, &down;
  index_t first_rows = 0;  // of gate and up
};

struct ParameterTable {
  std::vector<nn::ParameterSpec> specs;
  nn::HeadShard heads{};
  Range intermediate;  // of intermediate_size; of a mixture of experts that of the shared one
  Range expert_width;  // of moe_intermediate_size
  Range experts;       // held here
  Range vocabulary;    // of vocab_size
  Range positions;     // of max_position_embeddings, where they are learned
  index_t size = 0;         // elements of a flat buffer
  bool has_embedding = true;  // to look up tokens
  bool has_head = true;       // final norm and output head
  Range vectors;            // in front of the matrices
  std::vector<Unit> units;  // the matrices: embedding, layers, head, as far as they are held
  int shards = 1;           // every unit divides into so many pieces
  int expert_shards = 1;    // those of experts

  index_t first_layer_unit = 0;
  index_t layers = 0;       // held
  bool is_tied = false;     // the head's weights are those of the embedding
  index_t first_expert_unit = 0;  // all units without experts
  std::size_t first_expert_spec = 0;  // gate, up and down of each expert of the layer, behind all others

  index_t embedding_unit() const { return 0; }
  index_t layer_unit(index_t local_layer) const { return first_layer_unit + local_layer; }
  index_t head_unit() const { return is_tied ? embedding_unit() : first_expert_unit - 1; }
  bool is_layer(index_t unit) const { return unit >= first_layer_unit && unit < first_layer_unit + layers; }
  bool has_experts() const { return experts.size() > 0; }
  /// Of the layer whose other parameters are in `unit`.
  index_t expert_unit(index_t unit) const { return first_expert_unit + unit - first_layer_unit; }
  Section dense_section() const;
  Section expert_section() const;
  const nn::ParameterSpec& operator[](const std::string& name) const;  // error when there is none
  bool contains(const std::string& name) const;
  MlpSpecs mlp(const std::string& prefix) const;
  MlpSpecs expert(index_t number) const;
  index_t logical_parameters() const;  // of the whole model
};

/// model must be resolved (heads, head_dim, vocab_size filled in). chunks: the layers held, ascending and apart;
/// empty: all. shards: ranks that share the matrices of one replica. tensor_shards: parts of a dimension between which
/// alone it is cut, a multiple of tp_size, or 0: tp_size. A pure function: no communication.
ParameterTable make_parameter_table(const deck::ModelConfig& model, int tp_size, int tp_rank,
                                    deck::TpMode mode = deck::TpMode::all_reduce,
                                    const std::vector<Range>& chunks = {}, int shards = 1, int tensor_shards = 0,
                                    const ExpertPlace& experts = {});

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
void initialise(const ParameterTable& table, std::int64_t seed, const Vector<M>& master, const nn::Placement& held);

}  // namespace nanotron::model
