#pragma once

// Positions, document starts and filled positions of the micro-batches in flight, one set per slot.

#include <optional>
#include <vector>

#include "nanotron/deck/keys/data.hpp"
#include "nanotron/nn/attention/attention_core.hpp"
#include "nanotron/nn/attention/ring_reach.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::model {

class MicroBatchTokens {
 public:
  /// slots: for each virtual stage, the number of micro-batches in flight. finds_reach: of the blocks of a ring. The
  /// arena may be a planning one.
  MicroBatchTokens(const nn::ContextShard& context, index_t sequences, deck::DocumentMask mask, bool finds_reach,
                   const std::vector<index_t>& slots, Device& device, Arena& arena);

  const nn::TokenBatch& of(index_t stage, index_t slot) const { return at(stage, slot).batch; }

  /// packing.document_starts are copied, with a document mask; packing.tokens are read until the next call.
  void set_packing(Device& device, index_t stage, index_t slot, const nn::Packing& packing);

 private:
  struct Places {
    nn::TokenBatch batch;
    Vector<std::int32_t> positions, document_starts;
    std::optional<nn::RingReach> reach;
  };
  const Places& at(index_t stage, index_t slot) const {
    return places_[static_cast<std::size_t>(stage)][static_cast<std::size_t>(slot)];
  }

  nn::ContextShard context_;
  deck::DocumentMask mask_;
  std::vector<std::vector<Places>> places_;  // by virtual stage and slot; of one memory without a document mask
};

}  // namespace nanotron::model
