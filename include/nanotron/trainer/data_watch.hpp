#pragma once

// Whether the token files of a run stay what they were when it opened them.

#include <mpi.h>

#include <span>
#include <vector>

#include "nanotron/base/log.hpp"
#include "nanotron/data/token_file.hpp"
#include "nanotron/deck/choices.hpp"

namespace nanotron::trainer {

/// Compares sizes and times of the files, without reading them; before each validation and each checkpoint, so that
/// none is written of data that changed. A run whose file is renamed or replaced under its path goes on with the one
/// that it opened.
class DataWatch {
 public:
  DataWatch() = default;
  /// The files have to outlive this.
  explicit DataWatch(std::span<const data::TokenFile> training, std::span<const data::TokenFile> validation = {});

  /// A file that was written to in place: if its hashes say that it has the same content, a line in the log; else
  /// Error(data_error), the same on all ranks; or without hashes and with OnChange::warn a warning. A file that was
  /// replaced: a warning, once. Collective.
  void check(MPI_Comm world, deck::OnChange on_change, Log& log);

 private:
  struct Watched {
    const data::TokenFile* file;
    data::FileStatus before;
    bool is_replaced = false;  // and told so
  };
  static void check(Watched& watched, deck::OnChange on_change, Log& log);

  std::vector<Watched> files_;
};

}  // namespace nanotron::trainer
