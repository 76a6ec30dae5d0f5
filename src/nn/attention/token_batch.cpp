#include "nanotron/nn/attention/token_batch.hpp"

#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::nn {

index_t count_documents(std::span<const std::int32_t> document_starts, index_t length) {
  index_t count = 0;
  for (std::size_t i = 1; i < document_starts.size(); ++i) {
    const index_t before = (static_cast<index_t>(i) - 1) % length;
    // A document begins before this position, and has it.
    count += before + 1 < length && document_starts[i - 1] == before && document_starts[i] == before ? 1 : 0;
  }
  return count;
}

void place_tokens(Device& device, const SequenceShard& shard, index_t length,
                  Vector<const std::int32_t> document_starts, Vector<std::int32_t> positions) {
  const KernelRegion kernel(device, "place_tokens", reads(document_starts), writes(positions));
  const SequenceShard here = shard;
  const std::int32_t* const starts = document_starts.data();
  std::int32_t* const places = positions.data();
  kernels::for_each_element(
      device, "place_tokens", static_cast<index_t>(positions.extent(0)), KOKKOS_LAMBDA(const index_t i) {
        const index_t sequence = i / here.length(), position = here.position_of(i % here.length());
        const index_t start = starts == nullptr ? 0 : starts[sequence * length + position];
        places[i] = static_cast<std::int32_t>(position - start);
      });
}

}  // namespace nanotron::nn
