#pragma once

// How the parameters of a model are laid out in the flat buffers: a builder, and a function for each part of a layer.
// Private to the model layer.

#include <string>
#include <vector>

#include "nanotron/model/parameters/parameter_table.hpp"
#include "nanotron/model/parameters/parametrization.hpp"

namespace nanotron::model::detail {

using nn::Initial;
using nn::ParameterSpec;
using nn::Partition;

/// Of a sharded dimension: what a rank stores, what of that it owns, and whether some ranks of the group store the same
/// with parts of its gradient.
struct Held {
  Range local;
  Range owned;
  bool partial = false;
};
inline Held exclusively(Range r) { return {r, r, false}; }

/// Layers that have a part: those stored here and all of the model, ascending.
struct LayerNumbers {
  std::vector<index_t> here, of_model;
};

/// Lays specs out one after the other in a flat buffer.
class TableBuilder {
 public:
  TableBuilder(const deck::ModelConfig& model, ParameterTable& table, int tp_rank)
      : model_(model), table_(table), tp_rank_(tp_rank) {}

  /// Begins a section whose units divide into `shards` shards; end_section closes it.
  void begin_section(comm::ReplicaSet replicas, int shards);
  void end_section(const Range& params_1d);

  /// Whether this rank stores what follows. If not, it takes no memory here.
  void hold(bool is_held) { is_held_ = is_held; }
  void align(index_t shards = 1);
  index_t cursor() const { return cursor_; }

  /// Begins a unit. end_unit closes it.
  void begin_unit() { begin_ = cursor_; }
  void end_unit(int uses);

  /// Begins what each of these layers has; after begin_some_layers, what some of them have in addition. The latter
  /// begins at the same place in each of its layers, where the earlier parts of these layers end.
  void begin_layers(const LayerNumbers& layers);
  void begin_some_layers(const LayerNumbers& layers);
  /// Repeats it for every layer; end_layer_units makes each a unit.
  void end_layers() { lay_out_layers(1); }
  void end_layer_units();

  /// The 1-D parameters of a norm of hidden states; the weights of one of n columns.
  void norm(const std::string& prefix, bool partial);
  void norm_weight(const std::string& prefix, index_t n, bool partial);

  /// A replicated 1-D parameter. partial: each rank has a partial sum of its gradient.
  void whole_1d(const std::string& name, index_t n, Initial initial, bool partial);
  /// The same of one element with this initial value.
  void scalar_1d(const std::string& name, double value, bool partial);
  /// A replicated 1-D parameter of zeros that no gradient changes.
  void constant_1d(const std::string& name, index_t n);
  /// A 1-D parameter that is sharded.
  void bias(const std::string& name, index_t n, const Held& held, Initial initial = Initial::zeros);

  /// A replicated 2-D parameter. partial: as of whole_1d.
  void whole_matrix(const std::string& name, index_t rows, index_t columns, Role role, bool partial);
  void matrix(const std::string& name, index_t rows, index_t columns, Partition partition, const Held& held, Role role);

 private:
  struct Part {
    LayerNumbers layers;
    std::size_t first_spec = 0;
    index_t end = 0;  // where its first layer ends
  };
  std::vector<Range> lay_out_layers(index_t shards);
  void place(ParameterSpec& spec, const Part& part, const std::vector<Range>& layers) const;
  void shard(ParameterSpec& spec, const Held& held);
  void add(ParameterSpec& spec);

  const deck::ModelConfig& model_;
  ParameterTable& table_;
  int tp_rank_;
  comm::ReplicaSet replicas_ = comm::ReplicaSet::data_parallel;
  int shards_ = 1;
  index_t section_begin_ = 0, first_unit_ = 0, first_layer_unit_ = 0;
  std::vector<index_t> unit_of_layer_;
  std::vector<Part> parts_;  // of layers; the first is of all of them
  index_t begin_ = 0;        // of the unit
  index_t cursor_ = 0;
  bool is_held_ = true;
};

/// Query heads of this rank; query and key heads in rows of their projections.
struct AttentionParts {
  Held query_heads, query, key;
  bool rows_are_sharded = false;      // the rows of the hidden states, over the tensor-parallel ranks
  bool head_sums_are_partial = true;  // gradients of weights that all heads share, see gradient_group()
};
AttentionParts attention_parts(const deck::ModelConfig& model, const ParameterTable& table, int tp_size);

/// The 1-D and 2-D parameters of a layer's attention.
void add_attention_1d(TableBuilder& build, const deck::ModelConfig& model, const AttentionParts& parts);
void add_attention(TableBuilder& build, const deck::ModelConfig& model, const AttentionParts& parts);
/// Those of attention from compressed tokens, besides biases.
void add_compressed_1d(TableBuilder& build, const deck::ModelConfig& model, const AttentionParts& parts);
void add_compressed(TableBuilder& build, const deck::ModelConfig& model, const AttentionParts& parts);

/// What appended layers have in addition. partial: the rows of the hidden states are sharded.
void add_appended_1d(TableBuilder& build, bool partial);
void add_appended(TableBuilder& build, const deck::ModelConfig& model, bool partial);

/// Those of a dense feed-forward network.
void add_dense_1d(TableBuilder& build, const deck::ModelConfig& model, const ParameterTable& table);
void add_dense(TableBuilder& build, const deck::ModelConfig& model, const ParameterTable& table);

/// The names of the projections in the first GEMM of a feed-forward network.
using Projections = std::vector<std::string>;
const Projections& gate_and_up();

/// One network of this width, of which the rank stores `local`.
void add_mlp(TableBuilder& build, const std::string& prefix, const Projections& first, index_t hidden, index_t width,
             const Range& local);

/// The 1-D parameters of a router. partial: as of add_routed.
void add_routed_1d(TableBuilder& build, const deck::ModelConfig& model, bool partial);

/// Router and shared expert of a layer; the gate of the shared expert follows the router, so that one GEMM computes
/// both. partial: their gradients are, see nn/moe/expert_sums.hpp.
void add_routed(TableBuilder& build, const deck::ModelConfig& model, const ParameterTable& table, bool partial);

}  // namespace nanotron::model::detail
