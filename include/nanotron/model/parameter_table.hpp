#pragma once

// Every parameter of the model, under the name it has in a checkpoint, and where this rank's shard of it
// lies in the flat buffers. About a dozen entries, whatever the number of layers.
//
// Order in the flat buffers:  embedding | layer 0 | ... | layer L-1 | final norm, head
// so that backward completes gradients from the end of the buffer towards its beginning. A pipeline stage has
// the layers of its chunks, the embedding with the first layer of the model and the rest with the last; where
// head and embedding are tied, the stage of the last layer has the embedding too, to use but not to own. Inside a layer the
// vectors come first, and q, k, v (their biases too) as well as gate and up lie one behind the other: each
// of these is one product.

#include <optional>
#include <vector>

#include "nanotron/deck/config.hpp"
#include "nanotron/nn/heads.hpp"
#include "nanotron/nn/parameter.hpp"

namespace nanotron::model {

struct ParameterTable {
  std::vector<nn::ParameterSpec> specs;
  nn::HeadShard heads{};
  Range intermediate;  // of intermediate_size
  Range vocabulary;    // of vocab_size
  index_t size = 0;    // elements of a flat buffer
  index_t layers_begin = 0;
  index_t layer_stride = 0;
  index_t head_begin = 0;

  index_t layer_begin(index_t local_layer) const { return layers_begin + local_layer * layer_stride; }
  const nn::ParameterSpec& operator[](const std::string& name) const;  // error when there is none
  bool contains(const std::string& name) const;
  index_t logical_parameters() const;  // of the whole model
};

/// model must be resolved (heads, head_dim, vocab_size filled in). chunks: the layers held, ascending and apart;
/// empty: all. A pure function: no communication.
ParameterTable make_parameter_table(const deck::ModelConfig& model, int tp_size, int tp_rank,
                                    deck::TpMode mode = deck::TpMode::all_reduce,
                                    const std::vector<Range>& chunks = {});

/// A contiguous part of a flat buffer.
struct FlatRange {
  index_t begin;
  index_t end;
};

/// What this rank owns of the flat buffers, neighbours merged: the union over the tensor-parallel group holds
/// each logical element once.
std::vector<FlatRange> owned_ranges(const ParameterTable& table);

/// The whole of the flat buffers, cut where weight decay begins or ends to apply.
struct DecayRange {
  FlatRange range;
  bool decays;
};
std::vector<DecayRange> decay_ranges(const ParameterTable& table);

/// Overwrites the master weights with their initial values. An element depends on the seed, the tensor's name
/// and its index in the logical tensor alone, so every grid starts from the same weights. Normal values are
/// rounded to float in every precision. Projections back into the residual stream are scaled by
/// 1 / sqrt(2 layers) (Shoeybi et al. 2019, section 4).
template <class M>
void initialise(const ParameterTable& table, std::int64_t seed, const Vector<M>& master);

}  // namespace nanotron::model
