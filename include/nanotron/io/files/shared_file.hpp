#pragma once

// Whether all ranks reach the same file: each node may have a disk of its own under the same path.

#include <mpi.h>

#include <filesystem>
#include <string>

#include "nanotron/base/error.hpp"

namespace nanotron::io {

/// Collective: checks that every rank can open the file and finds the same size and first bytes as rank 0. The
/// other ranks retry for `patience` seconds, since a network file system may show a new file late.
/// Error(code) on all ranks, which names the first rank that does not see it, and its host.
void require_same_file(MPI_Comm world, const std::filesystem::path& path, ExitCode code, double patience = 10.0);

}  // namespace nanotron::io
