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

/// A new file of one process (truncates an old one), laid out for parallel access: objects of 64
/// KiB and more begin at multiples of 1 MiB. Throws Error(system_error).
hdf5::File create_file(const std::filesystem::path& path);

enum class Access { read, write };

/// Opens an existing file by MPI-IO. Collective. Throws Error(data_error) for reading,
/// Error(system_error) for writing.
hdf5::File open_parallel(MPI_Comm world, const std::filesystem::path& path, Access access);

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

/// Collective: reads every rank's part back and compares the bytes with memory. Error(system_error)
/// when they differ: Open MPI's collective writes can lose data on a failing disk without reporting
/// it.
void compare_slab(MPI_Comm world, const hdf5::Dataset& dataset, const StateTensor& tensor,
                  ScalarType master, const std::string& where,
                  std::int64_t piece_bytes = std::int64_t{64} << 20);

}  // namespace nanotron::io
