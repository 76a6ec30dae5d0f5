#pragma once

// The data of a run: what its checkpoints record, what a resumed run must find unchanged, and what the log says.

#include <mpi.h>

#include <string>
#include <vector>

#include "nanotron/base/log.hpp"
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/io/checkpoint/checkpoint.hpp"
#include "nanotron/trainer/data/token_files.hpp"
#include "nanotron/trainer/data/training_stages.hpp"

namespace nanotron::trainer {

// Which data a run sees: what its checkpoints record, and what a resumed run must find unchanged.

/// 16 hexadecimal digits: block_hash of the block_hash of up to 64 blocks of 4096 ids (int32), evenly spread over the
/// file, and of their part of the loss mask. It distinguishes most files, but not a change of a few tokens.
std::uint64_t sample_hash(const data::TokenFile& file);

/// Entries for the files of a run, training first. Each rank reads the samples of some files. Collective.
std::vector<io::DataFile> data_of(const TokenFiles& files, const deck::Config& config, MPI_Comm world);

/// Compares deck and data with those of the checkpoint in `folder`. Changes of keys that may change are logged. What
/// repeats or skips samples - another order, other samples of a file so far, a file of another content under a
/// name that gave samples - and other validation data under the same name are an error with data%on_change = 'refuse',
/// which lists all: Error(data_error) where files differ, else Error(deck_error); with 'warn' they are warnings. What
/// neither side knows is not compared; before the first sample (sample_cursor 0) nothing can break.
void compare_data(const io::CheckpointInfo& info, const std::vector<io::DataFile>& here, const deck::Config& config,
                  const std::string& folder, Log& log);

// What a run says about its data.

/// vocab_size of the token files, the largest. Collective.
std::int64_t vocabulary_of_data(const deck::Config& config, MPI_Comm world);

/// "unigram entropy of the data: 7.1234 nats per token"; empty where no training file has it.
std::string entropy_text(const TokenFiles& files, const deck::DataConfig& data);

/// The stages of training as a table, where there are several; of files with names, for each stage, the weights, the
/// sequences of each file and the epochs of it that the stage takes. Loaders: of each stage.
std::vector<std::string> data_tables(const TrainingStages& stages, const std::vector<Loaders>& loaders);

/// Opens and checks the data of the deck on rank 0 and describes them; names the files that are missing. Collective.
std::string describe_data(const deck::Config& config, MPI_Comm world);

/// The same for --plan, a text of lines: empty for one file, and where files are missing. Collective.
std::string describe_blend(const deck::Config& config, MPI_Comm world);

}  // namespace nanotron::trainer
