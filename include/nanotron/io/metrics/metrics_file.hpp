#pragma once

// <output_dir>/metrics.h5: one extensible 1-D dataset per quantity.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nanotron/base/log.hpp"
#include "nanotron/base/provenance.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/data/files/byte_store.hpp"
#include "nanotron/io/metrics/metrics_rows.hpp"

namespace nanotron::io {

struct Column;
class MetricsTable;
class RowHashes;

/// What each start of a run writes into the file about itself.
struct MetricsStart {
  Provenance provenance{};
  std::string deck{};                          // canonical text
  std::string title{};                         // run%title
  std::span<const ExtraColumn> extra{};        // of the kind of model, at most as many as ExtraValues has
  std::vector<std::string> validation_sets{};  // those with names
  std::int64_t sample_cursor = 0;              // the run continues with this global sample
  bool keeps_starts = false;                   // of a file moved aside because the run restarts without a checkpoint
  StartRow start{};                            // its number and its steps are filled in
  Provenance lineage{};                        // attributes of /lineage/start_<number>
};

/// Used by one rank; plain serial HDF5, readable by others while it is written and after a kill. What cannot be written
/// is an Error(system_error) of the next flush, and nothing more is written then.
class MetricsFile {
 public:
  /// Continues an existing file: rows of steps after `resumed_step` are dropped, so that each curve has
  /// one value per step, as are bad steps of samples from start.sample_cursor on. The log warns of rows
  /// that do not match their hashes (row_hash and validation_hash). With resumed_step 0 an existing file is
  /// moved to <name>.previous-<n>, n being the first free number; so is one that cannot be continued (a
  /// warning). Then a new file is created. Error if space is missing, or if the file cannot be
  /// inspected, read or written; an old file is then left. The first start writes /provenance and /deck,
  /// a start that resumes at step n writes /provenance_step_<n> and /deck_step_<n>. The attribute title
  /// is that of the latest start. A named validation set is NaN in rows written while the deck did not
  /// have it.
  MetricsFile(const std::filesystem::path& path, std::int64_t resumed_step, const MetricsStart& start, Log& log);
  ~MetricsFile();

  /// Keeps the row; flushes at most once per second, or when too many rows wait.
  void append(const MetricsRow& row);
  /// Datasets validation_step (int64), validation_loss (float64, the mean over the sets), and validation_loss_<name> of
  /// each named set. losses: one per set, at least one.
  void append_validation(std::int64_t step, std::span<const double> losses);
  void append_bad_step(const BadStepRow& row);
  /// The row of this start, written with the next flush; `start` is kept.
  void update_start(const StartRow& row);
  void append_checkpoint(std::int64_t step, double training_seconds);
  /// Drops all rows of later steps.
  void drop_after(std::int64_t step);
  /// Writes all kept rows to the file now.
  void flush();
  /// The same, and closes the file: only the destructor may follow.
  void close();
  /// Where an old file was moved to, else empty.
  const std::filesystem::path& set_aside() const { return set_aside_; }

 private:
  struct Validation {
    std::int64_t step;
    double loss;
  };
  // Why the old file cannot be continued, else empty.
  std::string try_continue(std::int64_t resumed_step, const MetricsStart& start, Log& log);
  void begin_start(std::int64_t resumed_step, const MetricsStart& start, Log& log);
  void move_aside();
  void make_room(std::int64_t bytes) const;
  void create();
  void open(hdf5::Access access);
  void open_columns();
  void write_start(const std::string& suffix, const MetricsStart& start);
  void write_provenance(const std::string& group, const Provenance& provenance);
  void cut_after(std::int64_t step);
  void forget_bad_steps(index_t sample_cursor);
  void open_starts(const MetricsStart& start, Log& log);
  void open_named_losses();
  void forget_named_losses();
  void open_hashes();
  void append_hashes();
  void tell_damaged_rows(Log& log) const;
  void append_named_losses();
  void write_deck(const std::string& name, const std::string& text);
  void flush_if_due();

  std::filesystem::path path_, set_aside_;
  std::vector<Column> layout_;  // of the file: columns of MetricsRow, then those of validation
  std::size_t row_columns_;     // columns of MetricsRow
  std::size_t sets_;            // named validation sets of the deck
  std::shared_ptr<hdf5::FileStore> store_;
  hdf5::File file_;
  std::vector<hdf5::Dataset> columns_;
  index_t rows_ = 0, validation_rows_ = 0;  // in the file
  std::vector<MetricsRow> pending_;
  std::vector<Validation> pending_validation_;
  struct NamedLoss {
    std::string name;  // of the dataset
    hdf5::Dataset dataset;
    std::vector<double> pending;
  };
  std::vector<NamedLoss> named_losses_;  // of the deck's sets, then those that only the file has
  std::vector<std::uint64_t> gathered_;  // one column of pending_, as bits
  std::unique_ptr<RowHashes> hashes_, validation_hashes_;
  std::unique_ptr<MetricsTable> starts_;
  StartRow start_;  // this one
  double last_flush_ = 0.0;
};

}  // namespace nanotron::io
