#pragma once

// Tensors from an HDF5 file that all ranks of a communicator have open, each for itself, with errors that all agree on.

#include <mpi.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nanotron/comm/communicator.hpp"
#include "nanotron/data/files/hdf5.hpp"
#include "nanotron/io/blocks/state_tensor.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::io {

using comm::collectively;

/// The type of fp32, fp64 or bf16, the last one described by its bits: h5py and h5dump show it as float32.
hid_t native_type(ScalarType type);

/// A tensor and the open dataset that holds it, perhaps with others.
struct Slab {
  std::shared_ptr<const hdf5::Dataset> dataset;
  const StateTensor* tensor;
  ScalarType type;   // of the parts in memory
  std::string name;  // file and dataset, for messages
};

/// A rectangle of a part that one transfer moves: index ranges of the part's first dimension and, with
/// three dimensions, of its second.
struct Piece {
  const StatePart* part;
  Range outer, inner;
};

/// The pieces of each transfer of a rank's parts of a tensor: at most piece_bytes per transfer. Parts are split along
/// their first dimension, and a larger layer along its rows. A row is never split. Empty parts have
/// no pieces.
std::vector<std::vector<Piece>> transfers_of(const StateTensor& tensor, ScalarType type, std::int64_t piece_bytes);

/// Pinned bytes of the host that read_slabs() and assemble_blocks() hold: 0 where the host reaches device memory.
std::int64_t staging_bytes();

/// Collective: every rank reads its parts of the tensors, each for itself. Converts between the types, accepts any
/// storage. More than piece_bytes (on a GPU: or staging_bytes()) go in several transfers, see transfers_of. A failure
/// on one rank is the same error on all.
void read_slabs(MPI_Comm world, std::span<const Slab> slabs, std::int64_t piece_bytes = std::int64_t{1} << 30);

}  // namespace nanotron::io
