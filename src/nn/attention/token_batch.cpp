#include "nanotron/nn/attention/token_batch.hpp"

#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::nn {

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
