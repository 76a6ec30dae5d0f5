// The pieces of a transfer, packed one after the other in a pinned buffer. A transfer waits for its copies: a file is
// an order of magnitude slower than they are.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "io/pieces.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/tensor/pinned_memory.hpp"

namespace nanotron::io {
namespace {

constexpr std::int64_t buffer_bytes = std::int64_t{64} << 20;

// `rows` rows of `width` bytes.
struct Rows {
  std::byte* device;
  std::byte* host;  // packed
  std::size_t rows, width, device_pitch;
};

// f(rows) for the rows of each layer of a piece, of which `host` is the packed copy.
template <class F>
void for_each_layer(const Piece& device, const Piece& host, ScalarType type, const F& f) {
  const StatePart& part = *device.part;
  const std::vector<index_t> extent = extent_of(device);
  const std::size_t n = extent.size(), element = size_of(type);
  const auto bytes = [&](index_t elements) { return static_cast<std::size_t>(elements) * element; };
  const bool is_vector = n == 1 && part.stride[0] == 1;
  const index_t columns = is_vector ? extent[0] : n == 1 ? 1 : extent[n - 1];
  const index_t layers = n == 3 ? extent[0] : 1;
  const index_t rows = n == 3 ? extent[1] : is_vector ? 1 : extent[0];
  const index_t pitch = is_vector ? columns : part.stride[n == 3 ? 1 : 0];
  std::byte *from = memory_of(device, type), *to = memory_of(host, type);
  for (index_t layer = 0; layer < layers; ++layer) {
    f(Rows{from, to, static_cast<std::size_t>(rows), bytes(columns), bytes(std::max(pitch, columns))});
    from += bytes(part.stride[0]);
    to += bytes(rows * columns);
  }
}

void copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, const Rows& of) {
  NANOTRON_CHECK_CUDA(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, of.width, of.rows, cudaMemcpyDefault, nullptr));
}

}  // namespace

std::int64_t staging_bytes() { return buffer_bytes; }

struct Staging::Buffer {
  ScalarType type = ScalarType::fp32;
  PinnedMemory memory{static_cast<std::size_t>(buffer_bytes)};
  std::vector<StatePart> packed;  // in memory
  Transfer device, host;
};

Staging::Staging() : buffer_(std::make_unique<Buffer>()) { NANOTRON_CHECK_CUDA(cudaDeviceSynchronize()); }
Staging::~Staging() = default;

std::int64_t Staging::transfer_bytes(std::int64_t wanted) { return std::min(wanted, buffer_bytes); }

const Transfer& Staging::place(const Transfer& pieces, ScalarType type) {
  Buffer& b = *buffer_;
  b.type = type;
  b.device = pieces;
  b.host.clear();
  b.packed.clear();
  b.packed.reserve(pieces.size());  // host points into it
  std::byte* at = b.memory.data();
  for (const Piece& piece : pieces) {
    StatePart part = part_of(piece, type);
    part.data = at;
    part.stride.assign(part.extent.size(), 1);
    for (std::size_t i = part.extent.size() - 1; i > 0; --i) part.stride[i - 1] = part.stride[i] * part.extent[i];
    at += elements_of(piece) * static_cast<index_t>(size_of(type));
    b.packed.push_back(std::move(part));
    b.host.push_back({&b.packed.back(), {0, piece.outer.size()}, {0, piece.inner.size()}});
  }
  NANOTRON_REQUIRE(at - b.memory.data() <= buffer_bytes, "a row of more than {} bytes", buffer_bytes);
  return b.host;
}

void Staging::copy_to_host() {
  for (std::size_t i = 0; i < buffer_->device.size(); ++i) {
    for_each_layer(buffer_->device[i], buffer_->host[i], buffer_->type,
                   [](const Rows& r) { copy_rows(r.host, r.width, r.device, r.device_pitch, r); });
  }
  NANOTRON_CHECK_CUDA(cudaStreamSynchronize(nullptr));
}

void Staging::copy_to_device() {
  for (std::size_t i = 0; i < buffer_->device.size(); ++i) {
    for_each_layer(buffer_->device[i], buffer_->host[i], buffer_->type,
                   [](const Rows& r) { copy_rows(r.device, r.device_pitch, r.host, r.width, r); });
  }
  NANOTRON_CHECK_CUDA(cudaStreamSynchronize(nullptr));
}

}  // namespace nanotron::io
