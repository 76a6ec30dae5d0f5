#pragma once

// What a run resumes from: a checkpoint, or the copies on its hosts. Private to the trainer layer.

#include <memory>
#include <optional>

#include "nanotron/base/log.hpp"
#include "nanotron/comm/process_grid.hpp"
#include "nanotron/deck/config_forward.hpp"
#include "nanotron/io/checkpoint/checkpoint_reader.hpp"
#include "nanotron/io/copies/neighbour_copies.hpp"

namespace nanotron::trainer {

/// Null where the deck wants none. With checkpoint%resume other than 'auto' the run is a new one: copies of the one
/// before are removed. Collective.
std::unique_ptr<io::NeighbourCopies> make_copies(const deck::Config& config, const comm::ProcessGrid& grid,
                                                 MPI_Comm world, Log& log);

/// What checkpoint%resume names. 'auto' with copies (may be null): the newer of these and the newest good checkpoint;
/// of equal ones the copies, and no checkpoint is read then. Where these are gone, what first_resume names. Collective;
/// errors as of CheckpointReader::find.
std::optional<io::CheckpointReader> newest_state(MPI_Comm world, const deck::Config& config,
                                                 io::NeighbourCopies* copies, Log& log);

}  // namespace nanotron::trainer
