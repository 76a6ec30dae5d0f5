#pragma once

// The geometry of pieces (parallel_hdf5.hpp), and their way to HDF5, which reads and writes memory of the host.

#include <cstddef>
#include <memory>
#include <vector>

#include "nanotron/io/blocks/parallel_hdf5.hpp"

namespace nanotron::io {

using Transfer = std::vector<Piece>;

bool is_empty(const StatePart& part);
std::vector<index_t> extent_of(const Piece& piece);
index_t elements_of(const Piece& piece);
/// The first element.
std::byte* memory_of(const Piece& piece, ScalarType type);

/// The piece as a part of its own.
StatePart part_of(const Piece& piece, ScalarType type);

/// The part as it is packed at `memory`.
StatePart packed_at(std::byte* memory, const StatePart& part);
/// Of an element of the type; 0 without elements.
std::int64_t bytes_of(const StatePart& part, ScalarType type);

/// A part as rows in memory, sizes in bytes: layers of rows, each `width` long.
struct MemoryRows {
  std::byte* begin;
  std::size_t layers, rows, width, pitch, layer_pitch;

  MemoryRows(const StatePart& part, ScalarType type);
};

/// Pieces of device memory pass through one pinned buffer; where the host reaches device memory, they stay where they
/// are. Implemented in gpu/ and host/.
class Staging {
 public:
  /// Returns when all queued work is done. Holds staging_bytes() on the host.
  Staging();
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Bytes of a transfer if it may have `wanted`: no more than the buffer holds.
  static std::int64_t transfer_bytes(std::int64_t wanted);

  /// The same pieces on the host, with undefined values, instead of those of the last call.
  const Transfer& place(const Transfer& pieces, ScalarType type);
  /// Copies the values of the pieces placed last.
  void copy_to_host();
  void copy_to_device();

 private:
  struct Buffer;
  std::unique_ptr<Buffer> buffer_;
};

}  // namespace nanotron::io
