#pragma once

// A table in metrics.h5 that grows: a group with one extensible 1-D dataset per column, each value of 8 bytes, all on
// the dimension scale that is the first column, and the hash of each row in the column row_hash. Private to the io
// layer.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "metrics_columns.hpp"
#include "row_hashes.hpp"

namespace nanotron::io {

class MetricsTable {
 public:
  /// Opens the group, or creates it. Columns that a file of an earlier release lacks are an Error(data_error), except
  /// the hashes, which the first change adds.
  MetricsTable(hid_t file, const std::string& group, std::span<const Column> columns,
               const std::filesystem::path& path);

  index_t rows() const { return rows_; }
  /// row: of a struct with the columns at their offsets.
  void append(const void* row);
  /// Overwrites the last row.
  void replace_last(const void* row);
  /// Appends the rows of another table with the same columns, and their hashes as they are.
  void append_all(const MetricsTable& other);
  /// Keeps the first rows.
  void cut(index_t rows);
  std::vector<std::int64_t> integers(std::size_t column) const;
  /// Warns of rows that do not match, by their hashes; of one without a hash the first value is above 0.
  void tell_damaged_rows(Log& log) const;

 private:
  void write(index_t at, const void* row);
  void read(std::size_t column, void* values) const;
  RowHashes& hashes();

  std::string name_;
  std::span<const Column> columns_;
  std::filesystem::path path_;
  hdf5::Group group_;
  std::vector<hdf5::Dataset> datasets_;
  std::optional<RowHashes> hashes_;  // of a table that was changed
  index_t rows_ = 0;
};

}  // namespace nanotron::io
