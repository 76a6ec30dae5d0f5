#include "nanotron/model/layers/micro_batch_tokens.hpp"

#include "nanotron/kernels/elementwise/elementwise.hpp"

namespace nanotron::model {

MicroBatchTokens::MicroBatchTokens(const nn::ContextShard& context, index_t sequences, deck::DocumentMask mask,
                                   bool finds_reach, const std::vector<index_t>& slots, Device& device, Arena& arena)
    : context_(context), mask_(mask) {
  const index_t tokens = context.tokens().length(), length = context.layout.length();
  const auto take = [&] {
    Places p;
    p.positions = arena.take<std::int32_t>(MemoryKind::workspace, sequences * tokens);
    if (mask == deck::DocumentMask::block_diagonal) {
      p.document_starts = arena.take<std::int32_t>(MemoryKind::workspace, sequences * length);
    }
    p.batch = {.sequences = sequences,
               .length = tokens,
               .positions = p.positions,
               .document_starts = p.document_starts,
               .documents = sequences,  // in memory of zeros, and in a plan
               .filled = {.shard = context.tokens(), .length = length}};
    if (finds_reach && context.degrees.ring > 1) p.reach.emplace(SequenceLayout({context.degrees.ring, 1}, length));
    return p;
  };
  const Places whole = take();
  if (!arena.is_planning()) nn::place_tokens(device, context.tokens(), length, {}, whole.positions);
  for (const index_t count : slots) {
    std::vector<Places>& stage = places_.emplace_back();
    for (index_t i = 0; i < count; ++i) {
      const bool first = places_.size() == 1 && i == 0;
      stage.push_back(first || mask == deck::DocumentMask::none ? whole : take());
    }
  }
}

void MicroBatchTokens::set_packing(Device& device, index_t stage, index_t slot, const nn::Packing& packing) {
  Places& p = places_[static_cast<std::size_t>(stage)][static_cast<std::size_t>(slot)];
  p.batch.filled.tokens = packing.tokens.extent(0) > 0 ? packing.tokens.data() : nullptr;
  p.batch.step_tokens = packing.step_tokens;
  p.batch.samples = packing.samples;
  if (mask_ == deck::DocumentMask::none) return;
  if (!device.is_planning()) p.batch.documents = packing.documents;
  if (p.reach && !packing.starts_on_host.empty()) {
    p.reach->find(packing.starts_on_host);
    p.batch.reach = &*p.reach;
  }
  kernels::copy<std::int32_t>(device, packing.document_starts, p.document_starts);
  nn::place_tokens(device, context_.tokens(), context_.layout.length(), p.document_starts, p.positions);
}

}  // namespace nanotron::model
