#pragma once

// A training run, from a checked deck to its exit code.

#include <mpi.h>

#include <string>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/trainer/start/last_words.hpp"

namespace nanotron::trainer {

/// config: from load_config(); status: of io::RunStatus, may be empty; start: wall_seconds() at the start of the
/// program; last_words get the run's folder. Returns stopped_early if steps remain. Collective.
ExitCode train(const deck::Config& config, MPI_Comm world, const std::string& status, double start,
               LastWords& last_words);

}  // namespace nanotron::trainer
