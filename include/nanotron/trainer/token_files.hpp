#pragma once

// The token files of a run and the checks between them.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nanotron/base/log.hpp"
#include "nanotron/comm/process_grid.hpp"
#include "nanotron/data/token_file.hpp"
#include "nanotron/trainer/trainer.hpp"

namespace nanotron::trainer {

/// Each rank opens the files by itself. Error(data_error) names the validation set.
struct TokenFiles {
  data::TokenFile training;
  std::vector<data::TokenFile> validation;  // in the order of deck::validation_sets()

  explicit TokenFiles(const deck::Config& config);
};

/// Error(data_error) on all ranks unless they see the same files (data%verify) and the validation files have the
/// tokenizer of the training file (data%other_tokenizer). Collective.
void check_token_files(const TokenFiles& files, const deck::Config& config, MPI_Comm world, Log& log);

/// open() on every rank. An error names the rank and host, since other hosts may have the file. Collective.
void open_collectively(MPI_Comm world, const std::function<void()>& open);

/// Opens the files of the deck and checks them, as above. Collective.
std::unique_ptr<TokenFiles> open_token_files(const deck::Config& config, MPI_Comm world, Log& log);

/// Compares the tokenizer of `what` ("the checkpoint ...") with that of the training file. If they differ:
/// Error(data_error) with data%other_tokenizer = 'refuse', a warning with 'accept'. If they cannot be compared: a line
/// in the log.
void compare_tokenizers(const data::TokenizerId& training, const data::TokenizerId& other, const std::string& what,
                        const deck::DataConfig& data, Log& log);

/// The loaders borrow the files. Not collective.
Loaders make_loaders(const deck::Config& config, const TokenFiles& files, const comm::GridCoordinate& at);

}  // namespace nanotron::trainer
