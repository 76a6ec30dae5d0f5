#pragma once

// Whether the token files of a run stay what they were when it opened them.

#include <mpi.h>

#include <span>
#include <string>
#include <vector>

#include "nanotron/base/log.hpp"
#include "nanotron/data/batch_loader.hpp"
#include "nanotron/data/tokens/token_file.hpp"
#include "nanotron/deck/keys/data.hpp"
#include "nanotron/io/checkpoint/checkpoint.hpp"

namespace nanotron::trainer {

/// Of a long list, which files a rank looks after: file i that with i mod ranks = rank, of the ranks of a host.
struct FileTurns {
  int rank = 0, ranks = 1;
};

/// Compares sizes and times of the files, without reading them; called before each validation and each checkpoint, so
/// that no result is from data that changed. A run whose file is renamed or replaced under its path continues with the
/// one that it opened; of a long list, whose files do not stay open, a replaced one is Error(data_error).
class DataWatch {
 public:
  DataWatch() = default;
  /// The files have to outlive this. contents: for each file in this order, data::content_of() when it was opened; 0 or
  /// none: not known, except for a file with hashes.
  DataWatch(std::span<const data::TokenFile> training, std::span<const data::TokenFile> validation,
            std::span<const std::uint64_t> contents, const FileTurns& turns = {});

  /// A file that was written to in place: if it has the same content, by its hashes or read again, a line in the log;
  /// else Error(data_error), the same on all ranks; or, where nothing is known of its content, with OnChange::warn a
  /// warning. A file that was replaced: a warning, once. Collective.
  void check(MPI_Comm world, deck::OnChange on_change, Log& log);

 private:
  struct Watched {
    const data::TokenFile* file;
    data::FileStatus before;
    std::uint64_t content = 0;  // of a file without hashes; 0: not known
    bool is_replaced = false;   // and reported
  };
  struct Note {
    bool is_warning;
    std::string text;
  };
  static void check(Watched& watched, deck::OnChange on_change, std::vector<Note>& notes);
  static std::vector<Note> notes_of_ranks(MPI_Comm world, const std::vector<Note>& mine);

  std::vector<Watched> files_;
  bool in_turn_ = false;
};

// What a trainer reads its batches from.

/// The batch loaders. validation: the sets of the deck in its order, then the held-out split if the deck has one.
struct Loaders {
  data::BatchLoader training;
  std::vector<data::BatchLoader> validation;
  data::TokenizerId tokenizer{};     // of the training file
  std::vector<io::DataFile> data{};  // what checkpoints keep of the files (run_data.hpp)
  DataWatch watch{};
};

}  // namespace nanotron::trainer
