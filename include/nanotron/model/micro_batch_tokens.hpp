#pragma once

// Positions and document starts of the micro-batches in flight, one set per slot.

#include <vector>

#include "nanotron/deck/data_config.hpp"
#include "nanotron/nn/attention/attention_core.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::model {

class MicroBatchTokens {
 public:
  /// slots: for each virtual stage, the number of micro-batches in flight. The arena may be a planning one.
  MicroBatchTokens(const nn::ContextShard& context, index_t sequences, deck::DocumentMask mask,
                   const std::vector<index_t>& slots, Device& device, Arena& arena);

  const nn::TokenBatch& of(index_t stage, index_t slot) const { return at(stage, slot).batch; }

  /// starts (sequences, s): for each token where its document begins; copied. No-op without a document mask.
  void set_documents(Device& device, index_t stage, index_t slot, Vector<const std::int32_t> starts);

 private:
  struct Places {
    nn::TokenBatch batch;
    Vector<std::int32_t> positions, document_starts;
  };
  const Places& at(index_t stage, index_t slot) const {
    return places_[static_cast<std::size_t>(stage)][static_cast<std::size_t>(slot)];
  }

  nn::ContextShard context_;
  deck::DocumentMask mask_;
  std::vector<std::vector<Places>> places_;  // by virtual stage and slot; all the same without a document mask
};

}  // namespace nanotron::model
