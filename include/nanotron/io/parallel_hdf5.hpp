#pragma once

// Parallel HDF5: files opened by all ranks of a communicator, collective transfers of hyperslabs,
// and errors that all ranks agree on.

#include <mpi.h>

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "nanotron/comm/agreement.hpp"
#include "nanotron/data/hdf5.hpp"
#include "nanotron/io/checkpoint.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::io {

using comm::collectively;

/// A new file of one process (truncates an old one), laid out for parallel access: objects of 64
/// KiB and more begin at multiples of 1 MiB. Throws Error(system_error).
hdf5::File create_file(const std::filesystem::path& path);

/// Opens an existing file by MPI-IO, after checking that every rank reaches the same one. Collective.
/// Throws Error(system_error).
hdf5::File open_to_write(MPI_Comm world, const std::filesystem::path& path);

/// Of fp32, fp64 or bf16, the last one described by its bits: h5py and h5dump show it as float32.
hid_t native_type(ScalarType type);

/// A tensor and the open dataset that holds it.
struct Slab {
  hdf5::Dataset dataset;
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
/// their first dimension, and a layer that is larger by itself along its rows. A row is never split. Empty parts have
/// no pieces.
std::vector<std::vector<Piece>> transfers_of(const StateTensor& tensor, ScalarType type, std::int64_t piece_bytes);

/// Pinned bytes of the host that a call of one of the three functions below holds: 0 where the host reaches device
/// memory.
std::int64_t staging_bytes();

/// Collective: every rank writes its parts of the tensors; ranks without parts join
/// with an empty selection. More than piece_bytes (on a GPU: or staging_bytes()) go in several transfers, see
/// transfers_of (MPI-IO counts in 32 bits). A failure on one rank is the same error on all,
/// as far as the MPI library returns from a collective transfer that failed: Open MPI 4.1 may hang
/// in it.
void write_slabs(MPI_Comm world, std::span<const Slab> slabs, std::int64_t piece_bytes = std::int64_t{1} << 30);
/// Collective: every rank reads its parts of the tensors, each for itself. Converts between the types, accepts any
/// storage. A failure on one rank is the same error on all.
void read_slabs(MPI_Comm world, std::span<const Slab> slabs, std::int64_t piece_bytes = std::int64_t{1} << 30);

/// Max size of the buffer of compare_slabs().
inline constexpr std::int64_t compared_bytes = std::int64_t{64} << 20;

/// Collective: each rank reads its parts back and compares the bytes with memory.
/// Error(system_error) when they differ: Open MPI's collective writes can lose data on a failing
/// disk without reporting it.
void compare_slabs(MPI_Comm world, std::span<const Slab> slabs, std::int64_t piece_bytes = compared_bytes);

}  // namespace nanotron::io
