#pragma once

// Which data a run sees: what its checkpoints record, and what a resumed run must find unchanged.

#include <mpi.h>

#include <string>
#include <vector>

#include "nanotron/base/log.hpp"
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/io/checkpoint/checkpoint.hpp"
#include "nanotron/trainer/data/token_files.hpp"

namespace nanotron::trainer {

/// 16 hexadecimal digits: block_hash of the block_hash of up to 64 blocks of 4096 ids (int32), evenly spread over the
/// file, and of their part of the loss mask. It distinguishes most files, but not a change of a few tokens.
std::string sample_hash(const data::TokenFile& file);

/// Of the files of a run, training first. Rank 0 reads the sample. Collective.
std::vector<io::DataFile> data_of(const TokenFiles& files, const deck::Config& config, MPI_Comm world);

/// Compares deck and data with those of the checkpoint in `folder`. Changes of keys that may change are logged. What
/// repeats or skips samples - another order, other samples of a file so far, a file of another content under a
/// name that gave samples - and other validation data under the same name are an error with data%on_change = 'refuse',
/// which lists all: Error(data_error) where files differ, else Error(deck_error); with 'warn' they are warnings. What
/// neither side knows is not compared; before the first sample (sample_cursor 0) nothing can break.
void compare_data(const io::CheckpointInfo& info, const std::vector<io::DataFile>& here, const deck::Config& config,
                  const std::string& folder, Log& log);

}  // namespace nanotron::trainer
