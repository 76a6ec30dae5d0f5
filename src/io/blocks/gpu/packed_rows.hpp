#pragma once

// Between parts in memory of the device and packed copies of them, queued on a stream.

#include <cstddef>

#include "io/blocks/pieces.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/gpu_api.hpp"

namespace nanotron::io {

/// f(packed, rows in memory, pitch of these, bytes of a row, rows) for each layer.
template <class F>
void for_each_layer(std::byte* packed, const StatePart& part, ScalarType type, const F& f) {
  const MemoryRows of(part, type);
  for (std::size_t layer = 0; layer < of.layers; ++layer)
    f(packed + layer * of.rows * of.width, of.begin + layer * of.layer_pitch, of.pitch, of.width, of.rows);
}

// A pitch has to be below 2 GiB, which one long row need not be.
inline void queue_copy(std::byte* to, std::size_t to_pitch, const std::byte* from, std::size_t from_pitch,
                       std::size_t width, std::size_t rows, gpuStream_t stream) {
  if (to_pitch == width && from_pitch == width)
    NANOTRON_CHECK_GPU(gpuMemcpyAsync(to, from, width * rows, gpuMemcpyDefault, stream));
  else
    NANOTRON_CHECK_GPU(gpuMemcpy2DAsync(to, to_pitch, from, from_pitch, width, rows, gpuMemcpyDefault, stream));
}

inline void copy_to_packed(std::byte* packed, const StatePart& part, ScalarType type, gpuStream_t stream) {
  for_each_layer(packed, part, type, [&](std::byte* to, const std::byte* from, auto pitch, auto width, auto rows) {
    queue_copy(to, width, from, pitch, width, rows, stream);
  });
}

inline void copy_from_packed(const std::byte* packed, const StatePart& part, ScalarType type, gpuStream_t stream) {
  for_each_layer(const_cast<std::byte*>(packed), part, type,
                 [&](const std::byte* from, std::byte* to, auto pitch, auto width, auto rows) {
                   queue_copy(to, pitch, from, width, width, rows, stream);
                 });
}

}  // namespace nanotron::io
