#pragma once

// The token files of a run and the checks between them.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nanotron/base/log.hpp"
#include "nanotron/comm/process_grid.hpp"
#include "nanotron/data/tokens/token_file.hpp"
#include "nanotron/io/checkpoint/checkpoint.hpp"
#include "nanotron/trainer/data/loaders.hpp"

namespace nanotron::trainer {

/// Up to 16 files are opened by each rank and stay open. Of a longer list file i is opened by rank i mod P, which gives
/// the others its head (data/tokens/token_head.hpp); from then on at most 64 files are open on a rank
/// (data/files/open_files.hpp). Error(data_error) names the key and, in a list, the file and its line. Collective.
struct TokenFiles {
  std::vector<data::TokenFile> training, validation;  // of data%path and data%validation_path, in their order
  std::vector<std::uint64_t> contents{};              // of DataWatch; none before open_token_files()
  FileTurns turns{};

  explicit TokenFiles(const deck::Config& config, MPI_Comm world = MPI_COMM_SELF);
  bool is_long_list() const { return !training.front().stays_open(); }
};

/// Where the numbers of tokens are the weights of the files: fills in data%weights.
void fill_weights(const TokenFiles& files, deck::Config& config);

/// Error(data_error) on all ranks unless they see the same files (data%verify) and all have the tokenizer of the first
/// training file (data%other_tokenizer). node: the ranks that share memory, if they are known. Collective.
void check_token_files(const TokenFiles& files, const deck::Config& config, MPI_Comm world, Log& log,
                       MPI_Comm node = MPI_COMM_NULL);

/// open() on every rank. An error names the rank and host, since other hosts may have the file. Collective.
void open_collectively(MPI_Comm world, const std::function<void()>& open);

/// Opens the files of the deck and checks them, as above. Collective.
std::unique_ptr<TokenFiles> open_token_files(const deck::Config& config, MPI_Comm world, Log& log,
                                             MPI_Comm node = MPI_COMM_NULL);

/// A tokenizer, and whose it is: "the checkpoint ...".
struct TokenizerOf {
  const data::TokenizerId& id;
  std::string what;
};

/// If they differ: Error(data_error) with data%other_tokenizer = 'refuse', a warning with 'accept'. If they cannot be
/// compared: a line in the log.
void compare_tokenizers(const TokenizerOf& wanted, const TokenizerOf& other, const deck::DataConfig& data, Log& log);

/// The same with that of the (first) training file.
void compare_tokenizers(const data::TokenizerId& training, const data::TokenizerId& other, const std::string& what,
                        const deck::DataConfig& data, Log& log);

/// The token that begins the texts of a file, as io::DataFile has it.
std::int64_t begin_of(const data::TokenFile& file);

/// A warning if the texts of a file (what) begin differently from those of every training file: a model then gives
/// them too low a likelihood. training: io::DataFile::bos of each; no warning if one is not known, or there is
/// none.
void compare_begins(std::span<const std::optional<std::int64_t>> training, std::int64_t bos, const std::string& what,
                    Log& log);

/// The loaders borrow the files. Not collective.
Loaders make_loaders(const deck::Config& config, const TokenFiles& files, const comm::GridCoordinate& at);

}  // namespace nanotron::trainer
