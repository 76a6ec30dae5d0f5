#pragma once

// The token files of a run and what has to fit between them. Private to the trainer.

#include <string>
#include <vector>

#include "nanotron/base/log.hpp"
#include "nanotron/comm/process_grid.hpp"
#include "nanotron/data/token_file.hpp"
#include "nanotron/trainer/trainer.hpp"

namespace nanotron::trainer {

/// Opened by each rank on its own; errors name the validation set. Error(data_error).
struct TokenFiles {
  data::TokenFile training;
  std::vector<data::TokenFile> validation;  // as deck::validation_sets()

  explicit TokenFiles(const deck::Config& config);
};

/// Ends the run unless all ranks see the same files (data%verify), and validation files have the tokenizer of the
/// training file (data%other_tokenizer). Collective.
void check_token_files(const TokenFiles& files, const deck::Config& config, MPI_Comm world, Log& log);

/// Of `what` ("the checkpoint ...") against the training file's: Error(data_error) where they differ and
/// data%other_tokenizer is 'refuse', a warning where it is 'accept'; a line in the log where there is nothing to compare.
void compare_tokenizers(const data::TokenizerId& training, const data::TokenizerId& other, const std::string& what,
                        const deck::DataConfig& data, Log& log);

/// Borrows the files. Not collective.
Loaders make_loaders(const deck::Config& config, const TokenFiles& files, const comm::GridCoordinate& at);

}  // namespace nanotron::trainer
