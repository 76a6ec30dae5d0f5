#include "metrics_table.hpp"

#include <fmt/format.h>
#include <hdf5_hl.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"

namespace nanotron::io {
namespace {

constexpr index_t max_packed = 1100;  // bytes of values for each byte that deflate stores

const std::string row_hash = "row_hash";

// One dimension: HDF5 finds a column that cannot grow only as a row is added.
bool can_grow(const hdf5::Dataset& dataset) {
  const hdf5::PropertyList creation(H5Dget_create_plist(dataset.id()));
  const hdf5::Dataspace space(H5Dget_space(dataset.id()));
  hsize_t most = 0;
  return H5Pget_layout(creation.id()) == H5D_CHUNKED && H5Sget_simple_extent_dims(space.id(), nullptr, &most) == 1 &&
         most == H5S_UNLIMITED;
}

// HDF5 trusts the index of the chunks: it finds one that lies outside of the file only as it writes to it, and writes
// as many bytes of its buffer as the index says. One dimension, values of 8 bytes.
bool has_wrong_chunk(const hdf5::Dataset& dataset) {
#if H5_VERSION_GE(1, 10, 5)
  const hdf5::PropertyList creation(H5Dget_create_plist(dataset.id()));
  const bool is_plain = H5Pget_nfilters(creation.id()) == 0;
  const hdf5::Dataspace space(H5Dget_space(dataset.id()));
  const hdf5::File file(H5Iget_file_id(dataset.id()));
  haddr_t end = 0, begin = 0;
  hsize_t values = 0, chunks = 0, offset = 0, bytes = 0;
  unsigned skipped_filters = 0;
  if (H5Pget_chunk(creation.id(), 1, &values) != 1 || H5Fget_eoa(file.id(), &end) < 0 ||
      H5Dget_num_chunks(dataset.id(), space.id(), &chunks) < 0)
    return true;
  for (hsize_t i = 0; i < chunks; ++i) {
    if (H5Dget_chunk_info(dataset.id(), space.id(), i, &offset, &skipped_filters, &begin, &bytes) < 0) return true;
    if (begin > end || bytes > end - begin || (is_plain && bytes != 8 * values)) return true;
  }
#else
  (void)dataset;
#endif
  return false;
}

}  // namespace

void write_text(hid_t object, const char* name, std::string_view value) {
  hdf5::write_string(object, name, value, ExitCode::data_error);
}

// Rows that come to lie before the first value are NaN.
void create_column(hid_t parent, const std::string& name, const std::string& scale, hid_t type, const char* unit,
                   const char* description, const std::filesystem::path& path) {
  const double missing = std::numeric_limits<double>::quiet_NaN();
  const hsize_t none = 0, unlimited = H5S_UNLIMITED;
  const hdf5::Dataspace space(H5Screate_simple(1, &none, &unlimited));
  const hdf5::PropertyList creation(H5Pcreate(H5P_DATASET_CREATE));
  H5Pset_chunk(creation.id(), 1, &chunk);
  if (type == H5T_NATIVE_DOUBLE) H5Pset_fill_value(creation.id(), type, &missing);
  hdf5::Dataset made(
      checked(H5Dcreate2(parent, name.c_str(), type, space.id(), H5P_DEFAULT, creation.id(), H5P_DEFAULT), path));
  write_text(made.id(), "units", unit);
  write_text(made.id(), "long_name", description);
  if (name == scale) {
    checked(H5DSset_scale(made.id(), scale.c_str()), path);
  } else {
    const hdf5::Dataset axis = hdf5::open_dataset(parent, scale, path.string());
    checked(H5DSattach_scale(made.id(), axis.id(), 0), path);
  }
}

void append_values(hid_t dataset, hid_t type, index_t first, const void* values, index_t count,
                   const std::filesystem::path& path) {
  const auto start = static_cast<hsize_t>(first), extent = static_cast<hsize_t>(count);
  const hsize_t length = start + extent;
  checked(H5Dset_extent(dataset, &length), path);
  const hdf5::Dataspace file_space(H5Dget_space(dataset));
  const hdf5::Dataspace memory(H5Screate_simple(1, &extent, nullptr));
  H5Sselect_hyperslab(file_space.id(), H5S_SELECT_SET, &start, nullptr, &extent, nullptr);
  checked(H5Dwrite(dataset, type, memory.id(), file_space.id(), H5P_DEFAULT, values), path);
}

index_t rows_of(const hdf5::Dataset& dataset, const std::string& name, const std::filesystem::path& path) {
  const auto refuse = [&](const std::string& expected, const std::string& found) {
    fail(ExitCode::data_error,
         {.what = fmt::format("the column '{}' is damaged", name), .expected = expected, .found = found});
  };
  const std::vector<index_t> shape = hdf5::checked_shape(dataset, name, path.string());
  if (shape.size() != 1) refuse("one dimension", fmt::format("{}", shape.size()));
  const hdf5::Datatype type(H5Dget_type(dataset.id()));
  const H5T_class_t kind = H5Tget_class(type.id());
  if ((kind != H5T_INTEGER && kind != H5T_FLOAT) || H5Tget_size(type.id()) != 8 || !hdf5::is_plain_number(type))
    refuse("numbers of 8 bytes", "others");
  const index_t most = files::bytes_of(path).value_or(0) / 8 * max_packed;
  if (shape[0] < 0 || shape[0] > most) refuse(fmt::format("at most {} rows", most), fmt::format("{}", shape[0]));
  if (!can_grow(dataset)) refuse("a column that can grow", "one of a fixed length");
  if (has_wrong_chunk(dataset)) refuse("chunks inside of the file, of one size", "another chunk");
  return shape[0];
}

void require_end(const hdf5::Dataset& dataset, index_t rows, const std::string& name) {
  if (rows == 0) return;
  const hsize_t last = static_cast<hsize_t>(rows) - 1, one = 1;
  const hdf5::Dataspace memory(H5Screate_simple(1, &one, nullptr)), file(H5Dget_space(dataset.id()));
  H5Sselect_hyperslab(file.id(), H5S_SELECT_SET, &last, nullptr, &one, nullptr);
  double value = 0.0;
  hdf5::check(H5Dread(dataset.id(), H5T_NATIVE_DOUBLE, memory.id(), file.id(), H5P_DEFAULT, &value),
              ExitCode::data_error, fmt::format("reading the end of {}", name));
}

MetricsTable::MetricsTable(hid_t file, const std::string& group, std::span<const Column> columns,
                           const std::filesystem::path& path)
    : name_(group), columns_(columns), path_(path) {
  const bool is_new = !hdf5::exists(file, group);
  group_ = is_new ? hdf5::Group(checked(H5Gcreate2(file, group.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), path_))
                  : hdf5::open_group(file, group, path_.string());
  rows_ = std::numeric_limits<index_t>::max();
  for (const Column& c : columns_) {
    if (is_new) create_column(group_.id(), c.name, columns_[0].name, type_of(c.kind), c.unit, c.description, path_);
    datasets_.push_back(hdf5::open_dataset(group_.id(), c.name, path_.string()));
    rows_ = std::min(rows_, rows_of(datasets_.back(), c.name, path_));  // of a row that was cut short by a kill: none
  }
  for (std::size_t c = 0; c < columns_.size(); ++c) require_end(datasets_[c], rows_, columns_[c].name);
}

RowHashes& MetricsTable::hashes() {
  if (!hashes_) {
    std::string of;
    for (const Column& c : columns_) of += fmt::format("{}{}", of.empty() ? "" : " ", c.name);
    hashes_.emplace(group_.id(), row_hash, of, columns_[0].name, rows_, path_);
  }
  return *hashes_;
}

void MetricsTable::write(index_t at, const void* row) {
  std::vector<std::uint64_t> values(columns_.size());
  for (std::size_t c = 0; c < columns_.size(); ++c)
    std::memcpy(&values[c], static_cast<const char*>(row) + columns_[c].offset, sizeof values[c]);
  const std::uint64_t hash = hash_of_row(values, values.size());
  hashes().append(at, {&hash, 1});
  for (std::size_t c = 0; c < columns_.size(); ++c)
    append_values(datasets_[c].id(), type_of(columns_[c].kind), at, &values[c], 1, path_);
  rows_ = at + 1;
}

void MetricsTable::append(const void* row) { write(rows_, row); }

void MetricsTable::replace_last(const void* row) { write(rows_ - 1, row); }

void MetricsTable::append_all(const MetricsTable& other) {
  hashes().append(rows_, stored_hashes(other.group_.id(), row_hash, other.rows_, other.path_));
  std::vector<std::uint64_t> values(static_cast<std::size_t>(other.rows_));
  for (std::size_t c = 0; c < columns_.size() && !values.empty(); ++c) {
    other.read(c, values.data());
    append_values(datasets_[c].id(), type_of(columns_[c].kind), rows_, values.data(), other.rows_, path_);
  }
  rows_ += other.rows_;
}

void MetricsTable::cut(index_t rows) {
  const auto length = static_cast<hsize_t>(rows_ = std::min(rows, rows_));
  for (const hdf5::Dataset& d : datasets_) checked(H5Dset_extent(d.id(), &length), path_);
  hashes().cut(rows_);
}

void MetricsTable::read(std::size_t column, void* values) const {
  const hsize_t start = 0, count = static_cast<hsize_t>(rows_);
  if (count == 0) return;
  const hid_t dataset = datasets_[column].id();
  const hdf5::Dataspace memory(H5Screate_simple(1, &count, nullptr)), file(H5Dget_space(dataset));
  H5Sselect_hyperslab(file.id(), H5S_SELECT_SET, &start, nullptr, &count, nullptr);
  checked(H5Dread(dataset, type_of(columns_[column].kind), memory.id(), file.id(), H5P_DEFAULT, values), path_);
}

std::vector<std::int64_t> MetricsTable::integers(std::size_t column) const {
  std::vector<std::int64_t> values(static_cast<std::size_t>(rows_));
  read(column, values.data());
  return values;
}

void MetricsTable::tell_damaged_rows(Log& log) const {
  const std::vector<std::uint64_t> hashes = stored_hashes(group_.id(), row_hash, rows_, path_);
  std::vector<std::vector<std::uint64_t>> values(columns_.size(), std::vector<std::uint64_t>(hashes.size()));
  for (std::size_t c = 0; c < columns_.size(); ++c) read(c, values[c].data());
  std::vector<std::size_t> damaged;
  std::vector<std::uint64_t> row(columns_.size());
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    for (std::size_t c = 0; c < row.size(); ++c) row[c] = values[c][i];
    const bool is_right =
        hashes[i] == 0 ? static_cast<std::int64_t>(row[0]) > 0 : hashes[i] == hash_of_row(row, row.size());
    if (!is_right) damaged.push_back(i);
  }
  if (!damaged.empty())
    log.warn("{}: {} rows of {} do not match their hashes; the first is row {}", path_.string(), damaged.size(), name_,
             damaged[0] + 1);
}

}  // namespace nanotron::io
