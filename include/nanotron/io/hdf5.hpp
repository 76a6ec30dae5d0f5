#pragma once

// Parallel HDF5: files opened by all ranks of a communicator, collective transfers of hyperslabs,
// and errors that all ranks agree on.

#include <mpi.h>

#include <filesystem>
#include <functional>
#include <string>

#include "nanotron/data/hdf5.hpp"
#include "nanotron/io/checkpoint.hpp"

namespace nanotron::io {

/// Runs `work` on every rank and then agrees on the outcome: if it threw anywhere, all ranks throw
/// the error of the lowest such rank. `work` must not wait for other ranks after a step that can
/// fail on one alone.
void collectively(MPI_Comm world, const std::function<void()>& work);

/// Collective. `create` truncates. Alignment 1 MiB for objects of 64 KiB and more; errors
/// Error(system_error) when creating, Error(data_error) when opening.
hdf5::File create_parallel(MPI_Comm world, const std::filesystem::path& path);
hdf5::File open_parallel(MPI_Comm world, const std::filesystem::path& path);

/// H5T_NATIVE_FLOAT or H5T_NATIVE_DOUBLE.
hid_t native_type(ScalarType master);

/// Collective: every rank writes its part of the tensor into, or reads it from, `dataset`; ranks
/// with an empty part take part with nothing selected. A part larger than piece_bytes goes in
/// several transfers along its first dimension (MPI-IO counts in 32 bits). `where` names file and
/// dataset in errors. Reading converts between float and double and accepts any storage; it is
/// collective when contiguous.
void write_slab(MPI_Comm world, const hdf5::Dataset& dataset, const StateTensor& tensor,
                ScalarType master, const std::string& where,
                std::int64_t piece_bytes = std::int64_t{1} << 30);
void read_slab(MPI_Comm world, const hdf5::Dataset& dataset, const StateTensor& tensor,
               ScalarType master, const std::string& where,
               std::int64_t piece_bytes = std::int64_t{1} << 30);

}  // namespace nanotron::io
