#include "row_hashes.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "metrics_columns.hpp"
#include "nanotron/data/files/read_only_file.hpp"

namespace nanotron::io {
namespace {

constexpr index_t rows_at_a_time = 1 << 16, max_counted = 1000;  // rows

// As they are in the file.
std::vector<std::uint64_t> bits_of(hid_t dataset, index_t first, index_t count, const std::filesystem::path& path) {
  std::vector<std::uint64_t> bits(static_cast<std::size_t>(count));
  const auto start = static_cast<hsize_t>(first), extent = static_cast<hsize_t>(count);
  const hdf5::Dataspace memory(H5Screate_simple(1, &extent, nullptr)), file(H5Dget_space(dataset));
  const hdf5::Datatype type(H5Dget_type(dataset));
  checked(H5Sselect_hyperslab(file.id(), H5S_SELECT_SET, &start, nullptr, &extent, nullptr), path);
  hdf5::check(H5Dread(dataset, type.id(), memory.id(), file.id(), H5P_DEFAULT, bits.data()), ExitCode::data_error,
              "reading rows");
  return bits;
}

}  // namespace

std::uint64_t hash_of_row(std::span<const std::uint64_t> values, std::size_t always) {
  std::vector<std::uint64_t> hashed;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (i < always || !std::isnan(std::bit_cast<double>(values[i]))) hashed.push_back(values[i]);
  return data::block_hash({reinterpret_cast<const char*>(hashed.data()), hashed.size() * sizeof hashed[0]});
}

std::vector<std::uint64_t> stored_hashes(hid_t parent, const std::string& name, index_t rows,
                                         const std::filesystem::path& path) {
  std::vector<std::uint64_t> hashes;
  if (hdf5::exists(parent, name)) {
    const hdf5::Dataset column = hdf5::open_dataset(parent, name, path.string());
    hashes = bits_of(column.id(), 0, std::min(rows, rows_of(column, name, path)), path);
  }
  hashes.resize(static_cast<std::size_t>(rows));
  return hashes;
}

RowHashes::RowHashes(hid_t parent, const std::string& name, const std::string& of, const std::string& scale,
                     index_t rows, const std::filesystem::path& path)
    : path_(path) {
  if (!hdf5::exists(parent, name)) {
    create_column(parent, name, scale, H5T_NATIVE_UINT64, "XXH3-64", "Hash of the values of this row; 0: not known.",
                  path);
    write_text(hdf5::open_dataset(parent, name, path.string()).id(), "of", of);
  }
  hashes_ = hdf5::open_dataset(parent, name, path.string());
  rows_of(hashes_, name, path);
  cut(rows);
  require_end(hashes_, rows, name);
}

void RowHashes::append(index_t first, std::span<const std::uint64_t> hashes) {
  if (hashes.empty()) return;
  append_values(hashes_.id(), H5T_NATIVE_UINT64, first, hashes.data(), std::ssize(hashes), path_);
}

void RowHashes::cut(index_t rows) {
  const auto length = static_cast<hsize_t>(rows);
  checked(H5Dset_extent(hashes_.id(), &length), path_);
}

RowHashes::Damage RowHashes::damage(std::span<const hid_t> columns, std::size_t always, index_t rows) const {
  Damage found;
  std::int64_t last = INT64_MIN;
  for (index_t first = 0; first < rows && found.rows < max_counted; first += rows_at_a_time) {
    const index_t count = std::min(rows_at_a_time, rows - first);
    const std::vector<std::uint64_t> hashes = bits_of(hashes_.id(), first, count, path_);
    std::vector<std::vector<std::uint64_t>> values;
    for (const hid_t column : columns) values.push_back(bits_of(column, first, count, path_));
    std::vector<std::uint64_t> row(columns.size());
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      for (std::size_t c = 0; c < row.size(); ++c) row[c] = values[c][i];
      const auto step = static_cast<std::int64_t>(row[0]);
      if (hashes[i] == 0 ? step > last : hashes[i] == hash_of_row(row, always)) {
        last = step;
      } else if (found.rows++ == 0) {
        found.first_step = step;
      } else if (found.rows == max_counted) {
        break;
      }
    }
  }
  return found;
}

}  // namespace nanotron::io
