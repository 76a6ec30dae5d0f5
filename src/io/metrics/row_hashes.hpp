#pragma once

// The hash of each row of metrics.h5, in a column beside those that it covers. Private to the io layer.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "nanotron/data/files/hdf5.hpp"

namespace nanotron::io {

/// XXH3-64 of the values of a row, 8 bytes each: of the first `always`, and of the others that are numbers, since a
/// column that is added later is NaN in earlier rows.
std::uint64_t hash_of_row(std::span<const std::uint64_t> values, std::size_t always);

/// The hashes of the first `rows` rows, 0 where the column has none: of a file that is read only.
std::vector<std::uint64_t> stored_hashes(hid_t parent, const std::string& name, index_t rows,
                                         const std::filesystem::path& path);

/// 0 stands in a row that was written before there were hashes.
class RowHashes {
 public:
  /// Opens the column, or makes it, with `rows` rows. of: the names of the columns of hash_of_row, in their order.
  RowHashes(hid_t parent, const std::string& name, const std::string& of, const std::string& scale, index_t rows,
            const std::filesystem::path& path);

  void append(index_t first, std::span<const std::uint64_t> hashes);
  /// Keeps the first rows.
  void cut(index_t rows);

  struct Damage {
    index_t rows = 0;
    std::int64_t first_step = 0;
  };
  /// The rows with another hash than their own, counted up to a thousand; columns: those of hash_of_row, the steps,
  /// which ascend, first.
  Damage damage(std::span<const hid_t> columns, std::size_t always, index_t rows) const;

 private:
  std::filesystem::path path_;
  hdf5::Dataset hashes_;
};

}  // namespace nanotron::io
