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

enum class Access { read, write };

/// Opens an existing file by MPI-IO, once every rank has been seen to reach the same one. Collective.
/// Throws Error(data_error) for reading, Error(system_error) for writing.
hdf5::File open_parallel(MPI_Comm world, const std::filesystem::path& path, Access access);

/// H5T_NATIVE_FLOAT or H5T_NATIVE_DOUBLE.
hid_t native_type(ScalarType master);

/// A tensor and the open dataset that holds it.
struct Slab {
  hdf5::Dataset dataset;
  const StateTensor* tensor;
  std::string name;  // file and dataset, for messages
};

/// A rectangle that one transfer moves, cut out of a part: indices of the part's first dimension and, in
/// one of three dimensions, of its second.
struct Piece {
  const StatePart* part;
  Range outer, inner;
};

/// What each transfer moves of a rank's parts of a tensor: at most piece_bytes. Parts are cut along their first
/// dimension, and along the rows of a layer that alone is larger; a single row is never cut. None for empty parts.
std::vector<std::vector<Piece>> transfers_of(const StateTensor& tensor, ScalarType master, std::int64_t piece_bytes);

/// Collective: every rank writes its parts of the tensors, or reads them; ranks with no part take part
/// with nothing selected. More than piece_bytes go in several transfers, see transfers_of (MPI-IO
/// counts in 32 bits). A failure on one rank is the same error on all,
/// as far as the MPI library returns from a collective transfer that failed: Open MPI 4.1 may hang
/// in it. Reading converts between float and double and accepts any storage; collective when
/// contiguous.
void write_slabs(MPI_Comm world, std::span<const Slab> slabs, ScalarType master,
                 std::int64_t piece_bytes = std::int64_t{1} << 30);
void read_slabs(MPI_Comm world, std::span<const Slab> slabs, ScalarType master,
                std::int64_t piece_bytes = std::int64_t{1} << 30);

/// What compare_slabs() holds at once.
inline constexpr std::int64_t compared_bytes = std::int64_t{64} << 20;

/// Collective: each rank reads its parts back and compares the bytes with memory.
/// Error(system_error) when they differ: Open MPI's collective writes can lose data on a failing
/// disk without reporting it.
void compare_slabs(MPI_Comm world, std::span<const Slab> slabs, ScalarType master,
                   std::int64_t piece_bytes = compared_bytes);

}  // namespace nanotron::io
