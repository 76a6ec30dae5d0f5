#pragma once

// From a deck to a finished run: the functions that main(), tests and benchmarks call.

#include <mpi.h>

#include <optional>
#include <string>
#include <vector>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/data/token_file.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/machine.hpp"
#include "nanotron/trainer/last_words.hpp"

namespace nanotron::trainer {

/// How many ranks the grid is resolved for.
enum class GridRanks {
  of_world,  // the ranks of the communicator: to run
  of_deck,   // the degrees in the deck, the smallest that fits where they are 0: to check or plan on one process
};

/// Rank 0 reads the deck and broadcasts it. Every rank checks and resolves it; vocab_size comes from the token file if
/// the deck leaves it open. Collective; every error is thrown on every rank.
deck::Config load_config(MPI_Comm world, const std::string& path,
                         const std::vector<std::string>& overrides, GridRanks ranks);

/// The grid the deck asks for. Collective.
comm::ProcessGrid make_grid(MPI_Comm world, const deck::Config& config);

/// The machine of a namelist file; nothing for an empty path. Collective.
std::optional<deck::Machine> load_machine(MPI_Comm world, const std::string& path);

/// The plan of the deck as text: grid, sizes, FLOPs, and memory and traffic of the rank that needs most memory; with a
/// machine also its roofline.
std::string describe_plan(const deck::Config& config, const std::optional<deck::Machine>& machine);

/// "grid: dp 2 x pp 1 x cp 1 x tp 4 = 8 ranks", of a resolved deck, as a line.
std::string grid_line(const deck::Config& config);

/// Opens and checks the data of the deck on rank 0 and describes them; names the files that are missing. Collective.
std::string describe_data(const deck::Config& config, MPI_Comm world);

/// Trains. config: from load_config(); status: of io::RunStatus, may be empty; start: wall_seconds() at the start of
/// the program; last_words get the run's folder. Returns stopped_early if steps remain. Collective.
ExitCode train(const deck::Config& config, MPI_Comm world, const std::string& status, double start,
               LastWords& last_words);

/// Loss and perplexity of the deck's validation sets, with the weights of the checkpoint that checkpoint%resume names,
/// on any grid; printed by rank 0. Takes the memory of a training; writes nothing. Collective.
ExitCode evaluate(const deck::Config& config, MPI_Comm world);

/// Accuracy of the same weights on the multiple-choice questions of the file `choices` (data/choice_file.hpp), printed
/// by rank 0, which also writes the scores of each question to the file `results` unless it is empty. data%path is not
/// opened. Collective.
ExitCode evaluate_choices(const deck::Config& config, const std::string& choices, const std::string& results,
                          MPI_Comm world);

}  // namespace nanotron::trainer
