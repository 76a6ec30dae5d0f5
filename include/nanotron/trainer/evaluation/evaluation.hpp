#pragma once

// Evaluation of the weights of a checkpoint (--evaluate, --choices).

#include <mpi.h>

#include <string>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/config.hpp"

namespace nanotron::trainer {

/// Loss and perplexity of the deck's validation sets, with the weights of the checkpoint that checkpoint%resume names,
/// on any grid; printed by rank 0. Takes as much memory as training; writes nothing. Collective.
ExitCode evaluate(const deck::Config& config, MPI_Comm world);

/// Accuracy of the same weights on the multiple-choice questions of the file `choices` (data/choices/choice_file.hpp),
/// printed by rank 0, which also writes the scores of each question to the file `results` unless it is empty. data%path
/// is not opened. Collective.
ExitCode evaluate_choices(const deck::Config& config, const std::string& choices, const std::string& results,
                          MPI_Comm world);

}  // namespace nanotron::trainer
