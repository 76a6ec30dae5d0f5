#pragma once

// What a run resumes from: a checkpoint, or the copies on its hosts. Private to the trainer layer.

#include <filesystem>
#include <memory>
#include <optional>

#include "nanotron/base/log.hpp"
#include "nanotron/comm/process_grid.hpp"
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/io/checkpoint/checkpoint_reader.hpp"
#include "nanotron/io/copies/neighbour_copies.hpp"

namespace nanotron::trainer {

// What a run resumes from: a checkpoint, or the copies on its hosts. Private to the trainer layer.

/// Null where the deck wants none. With checkpoint%resume other than 'auto' the run is a new one: copies of the one
/// before are removed. Collective.
std::unique_ptr<io::NeighbourCopies> make_copies(const deck::Config& config, const comm::ProcessGrid& grid,
                                                 MPI_Comm world, Log& log);

/// What checkpoint%resume names. 'auto' with copies (may be null): the newer of these and the newest good checkpoint;
/// of equal ones the copies, and no checkpoint is read then. Where these are gone, what first_resume names. Collective;
/// errors as of CheckpointReader::find.
std::optional<io::CheckpointReader> newest_state(MPI_Comm world, const deck::Config& config,
                                                 io::NeighbourCopies* copies, Log& log);

// A resuming run that finds no checkpoint: it may start from scratch only if none was ever written. Private to the
// trainer layer. One rank calls.

/// Error(system_error) if the link `latest`, the file known_good or the ledger in metrics.h5 says that a checkpoint was
/// written, with what a user can do. Call it where 'auto' found none.
void require_none_recorded(const deck::Config& config);

/// The same where the status file of an unfinished start names `checkpoint` in checkpoint%directory and no step folder
/// is left there. Empty: it names none.
void require_listed(const deck::Config& config, const std::filesystem::path& checkpoint,
                    const std::filesystem::path& status_file);

}  // namespace nanotron::trainer
