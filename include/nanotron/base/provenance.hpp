#pragma once

// The provenance that every output records.

#include <string>
#include <utility>
#include <vector>

namespace nanotron {

using Provenance = std::vector<std::pair<std::string, std::string>>;

/// The program: version, git hash and whether the tree was dirty, build type, flags, compiler, and the
/// versions of the libraries it was built with.
Provenance build_provenance();
/// In a build for GPUs: versions of the driver and of the GPU's libraries, as the process has them.
Provenance gpu_libraries();

/// The run: start time (UTC), command line, user, working directory, number of ranks, host and GPU of each rank
/// (as ranges of ranks: "0-3: node1"), scheduler ids (Slurm, PBS, PJM) if any. places: of each rank, see
/// place_of_process().
Provenance run_provenance(const std::vector<std::string>& places);

/// "host" or "host, GPU 0000:1B:00.0 (name)".
std::string place_of_process();

/// The date of the source, as 2026-01-31.
std::string source_date();

/// "key: value" lines.
std::string to_text(const Provenance& provenance);

}  // namespace nanotron
