// The pieces of a transfer, packed one after the other in a pinned buffer. A transfer waits for its copies: a file is
// an order of magnitude slower than they are.

#include <algorithm>
#include <utility>

#include "io/blocks/pieces.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/gpu_api.hpp"
#include "nanotron/tensor/pinned_memory.hpp"
#include "packed_rows.hpp"

namespace nanotron::io {
namespace {

constexpr std::int64_t buffer_bytes = std::int64_t{64} << 20;

}  // namespace

std::int64_t staging_bytes() { return buffer_bytes; }

struct Staging::Buffer {
  ScalarType type = ScalarType::fp32;
  PinnedMemory memory{static_cast<std::size_t>(buffer_bytes)};
  std::vector<StatePart> packed;  // in memory
  Transfer device, host;
};

Staging::Staging() : buffer_(std::make_unique<Buffer>()) { NANOTRON_CHECK_GPU(gpuDeviceSynchronize()); }
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
    StatePart part = packed_at(at, part_of(piece, type));
    at += elements_of(piece) * static_cast<index_t>(size_of(type));
    b.packed.push_back(std::move(part));
    b.host.push_back({&b.packed.back(), {0, piece.outer.size()}, {0, piece.inner.size()}});
  }
  NANOTRON_REQUIRE(at - b.memory.data() <= buffer_bytes, "a row of more than {} bytes", buffer_bytes);
  return b.host;
}

void Staging::copy_to_host() {
  for (std::size_t i = 0; i < buffer_->device.size(); ++i)
    copy_to_packed(memory_of(buffer_->host[i], buffer_->type), part_of(buffer_->device[i], buffer_->type),
                   buffer_->type, nullptr);
  NANOTRON_CHECK_GPU(gpuStreamSynchronize(nullptr));
}

void Staging::copy_to_device() {
  for (std::size_t i = 0; i < buffer_->device.size(); ++i)
    copy_from_packed(memory_of(buffer_->host[i], buffer_->type), part_of(buffer_->device[i], buffer_->type),
                     buffer_->type, nullptr);
  NANOTRON_CHECK_GPU(gpuStreamSynchronize(nullptr));
}

}  // namespace nanotron::io
