#pragma once

// What a transformer is built from, and the parameters that a rank stores of it.

#include <optional>
#include <vector>

#include "nanotron/deck/keys/data.hpp"
#include "nanotron/deck/keys/precision.hpp"
#include "nanotron/deck/keys/run.hpp"
#include "nanotron/model/layers/activations.hpp"
#include "nanotron/model/parameters/parameter_table.hpp"
#include "nanotron/model/parameters/sharding.hpp"
#include "nanotron/nn/attention/score_maxima.hpp"
#include "nanotron/nn/attention/token_batch.hpp"
#include "nanotron/nn/linear/tensor_parallel_region.hpp"
#include "nanotron/nn/moe/expert_exchange.hpp"
#include "nanotron/nn/received_rows.hpp"

namespace nanotron::model {

/// model is resolved: no size is 0.
struct TransformerSetup {
  deck::ModelConfig model;
  deck::LayerRecompute recompute{};
  nn::Objective objective{};
  deck::LoraConfig lora{};
  Purpose purpose = Purpose::training;
  std::optional<ScalarType> operands{};  // of the GEMMs of linear layers; none: as stored
  deck::Fp8Scales fp8_scales{};          // of fp8 operands
  bool fp8_experts = false;              // experts too
  index_t sequences = 0;                 // b: of a micro-batch
  index_t in_turns = 1;                  // micro-batches that go through the layers in turns, see HalvesInTurns
  index_t length = 0;                    // s: tokens of a whole sequence
  index_t key_length = 0;                // maximum number of keys of a query: length, or a cache's capacity
  std::vector<VirtualStage> stages{};    // ascending and disjoint; empty: one with all layers
  index_t offloaded_layers = 0;          // of each stage: VirtualStage::offloaded
  index_t hidden_gradients = 1;          // buffers for gradients of the hidden states
  Backward backward = Backward::whole;
  kernels::BackwardAlgorithm attention_backward = kernels::BackwardAlgorithm::fastest;
  deck::TpMode tp_mode = deck::TpMode::all_reduce;
  nn::TpOverlap overlap{};
  index_t mlp_tile = 0;  // tokens of a tile of dense networks; 0: all
  deck::ExpertGemms expert_gemms = deck::ExpertGemms::library;
  deck::ExpertRowType expert_rows = deck::ExpertRowType::compute;
  bool recompute_dispatch = false;   // of rows to experts
  comm::Group* tp = &comm::alone();  // the tensor-, context- and expert-parallel groups: outlive the model
  comm::Group* cp = &comm::alone();
  nn::ContextGroups cp_groups{};  // parts of cp, where it has several rings and all-to-alls
  comm::Group* ep = &comm::alone();
  nn::NodeGroups ep_nodes{};  // parts of ep, where messages go by node
  bool ep_spans_tp = false;   // on each rank of tp, which sends its own slice of the tokens to them
  Sharding sharding{};        // over the data-parallel ranks
  int unit_shards = 1;        // shards of a unit, a multiple of the shard group's size
  std::uint64_t seed = 0;     // of random masks
  nn::ScoreMaxima score_maxima{};
  nn::ReceivedRows* received_rows = nullptr;  // counts what experts receive; outlives the model
  int cp_all_to_all = 1;                      // ranks of each all-to-all of attention
  int cp_gathered = 1;                        // ranks that gather keys and values; then cp_all_to_all = 1
  deck::DocumentMask document_mask = deck::DocumentMask::none;
  bool length_buckets = false;  // blocks of a ring go only as far as documents need
  int tensor_shards = 0;        // shards of sums over features and heads; 0: as many as ranks (tensor/sum_order.hpp)
  int norm_shards = 0;     // of gradients of norm weights, summed over the tokens of a sequence (deck::SumShards::norm)
  int context_shards = 0;  // of all other sums over the tokens of a sequence. With more shards than ranks a
                           // micro-batch is one sequence, and GEMMs sum in that order

  nn::ContextShard context() const {
    const ContextDegrees degrees{.ring = cp->size() / (cp_all_to_all * cp_gathered),
                                 .all_to_all = cp_all_to_all,
                                 .gathered = cp_gathered,
                                 .shards = context_shards};
    return {degrees, {degrees, length}, cp->rank()};
  }
  nn::ContextGroups context_groups() const {
    return cp->size() == cp_all_to_all ? nn::ContextGroups{.all_to_all = cp}
           : cp_all_to_all == 1        ? nn::ContextGroups{.ring = cp}
                                       : cp_groups;
  }
};

/// The parameters of such a model that this rank stores.
ParameterTable parameter_table_of(const TransformerSetup& setup);

}  // namespace nanotron::model
