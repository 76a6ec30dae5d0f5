#include "nanotron/io/metrics/metrics_file.hpp"

#include <fmt/format.h>
#include <hdf5_hl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <new>

#include "io/checkpoint/step_folders.hpp"
#include "io/files/durable_files.hpp"
#include "metrics_table.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/base/timer.hpp"
#include "row_hashes.hpp"

namespace nanotron::io {
namespace {

namespace fs = std::filesystem;

const std::string named_loss = "validation_loss_";

constexpr std::size_t attribute_limit = 32 << 10;  // HDF5 keeps an attribute below 64 KiB
constexpr std::size_t pending_limit = 4096;
constexpr std::int64_t metadata_room = 64 << 10, starting_room = 1 << 20;  // bytes

std::vector<std::string> names_in_root(hid_t file) {
  std::vector<std::string> names;
  H5G_info_t info{};
  if (H5Gget_info(file, &info) < 0) return names;
  for (hsize_t i = 0; i < info.nlinks; ++i) {  // as many as the file says: not all may be there
    std::array<char, 256> name{};
    hdf5::check(H5Lget_name_by_idx(file, ".", H5_INDEX_NAME, H5_ITER_INC, i, name.data(), name.size(), H5P_DEFAULT),
                ExitCode::data_error, "listing the datasets");
    names.emplace_back(name.data());
  }
  return names;
}

// Also a link that is refused when it is read.
void remove_link(hid_t file, const std::string& name, const fs::path& path) {
  if (H5Lexists(file, name.c_str(), H5P_DEFAULT) > 0) checked(H5Ldelete(file, name.c_str(), H5P_DEFAULT), path);
}

/// Number of leading values, of the first `rows` of a step column, that are <= last.
index_t rows_until(const hdf5::Dataset& steps, index_t rows, std::int64_t last, const fs::path& path) {
  constexpr index_t at_a_time = 1 << 20;  // a damaged file may have far more rows than it has bytes
  const hdf5::Dataspace file_space(H5Dget_space(steps.id()));
  std::vector<std::int64_t> values;
  for (index_t first = 0; first < rows; first += at_a_time) {
    const auto start = static_cast<hsize_t>(first), count = static_cast<hsize_t>(std::min(rows - first, at_a_time));
    values.resize(count);
    checked(H5Sselect_hyperslab(file_space.id(), H5S_SELECT_SET, &start, nullptr, &count, nullptr), path);
    const hdf5::Dataspace memory(H5Screate_simple(1, &count, nullptr));
    hdf5::check(H5Dread(steps.id(), H5T_NATIVE_INT64, memory.id(), file_space.id(), H5P_DEFAULT, values.data()),
                ExitCode::data_error, "reading steps");
    const auto found = std::ranges::find_if(values, [last](std::int64_t s) { return s > last; });
    if (found != values.end()) return first + (found - values.begin());
  }
  return rows;
}

}  // namespace

MetricsFile::MetricsFile(const fs::path& path, std::int64_t resumed_step, const MetricsStart& start, Log& log)
    : path_(path),
      layout_(columns_of_file(start.extra)),
      row_columns_(row_columns.size() + start.extra.size()),
      sets_(start.validation_sets.size()) {
  for (const std::string& set : start.validation_sets) named_losses_.push_back({named_loss + set, {}, {}});
  pending_.reserve(pending_limit);
  pending_validation_.reserve(pending_limit);
  gathered_.reserve(pending_limit);
  const bool exists = files::kind_of_name(path_) != files::Kind::nothing;
  std::string damage;
  if (exists && resumed_step > 0) damage = try_continue(resumed_step, start, log);
  if (exists && (resumed_step == 0 || !damage.empty())) {
    move_aside();
    if (resumed_step == 0)
      log.info("metrics of an earlier run are kept as {}", set_aside_.string());
    else
      log.warn("{} cannot be read and is moved to {}; a new one begins after step {}: {}", path_.string(),
               set_aside_.string(), resumed_step, damage);
  }
  if (!file_) {
    create();
    begin_start(resumed_step, start, log);
  }
}

MetricsFile::~MetricsFile() {
  try {
    if (file_) close();
  } catch (const std::exception&) {  // a run that ends well calls close() itself, which reports errors
  }
}

void MetricsFile::move_aside() {
  columns_.clear();
  starts_.reset();
  hashes_.reset();
  validation_hashes_.reset();
  forget_named_losses();
  file_ = hdf5::File();
  store_.reset();
  set_aside_ = first_free(path_, ".previous-");
  std::error_code error;
  fs::rename(path_, set_aside_, error);
  if (error)
    fail(ExitCode::system_error, {.what = "the metrics file cannot be moved aside",
                                  .expected = "to rename it to " + set_aside_.string(),
                                  .found = error.message(),
                                  .where = path_.string(),
                                  .change = "the permissions of run%output_dir"});
}

std::string MetricsFile::try_continue(std::int64_t resumed_step, const MetricsStart& start, Log& log) {
  if (files::kind_of_name(path_) != files::Kind::file) return "not a regular file";
  make_room(starting_room);  // else the file is good, and waits for a start that finds room
  try {
    open(hdf5::Access::update);
    open_columns();
    index_t rows = INT64_MAX, validation_rows = INT64_MAX;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      index_t& shortest = c < row_columns_ ? rows : validation_rows;
      shortest = std::min(shortest, rows_of(columns_[c], layout_[c].name, path_));
    }
    rows_ = rows, validation_rows_ = validation_rows;
    cut_after(resumed_step);
    open_named_losses();
    open_hashes();
    forget_bad_steps(start.sample_cursor);
    tell_damaged_rows(log);
    begin_start(resumed_step, start, log);
    return "";
  } catch (const Error& error) {
    if (error.exit_code() == ExitCode::system_error) throw;  // the file may be good
    return reason(error);
  } catch (const std::bad_alloc&) {
    return "its sizes exceed the memory";
  }
}

// After the rows of earlier starts.
void MetricsFile::begin_start(std::int64_t resumed_step, const MetricsStart& start, Log& log) {
  open_starts(start, log);
  start_.resumed_step = start_.last_step = start_.lowest_step = resumed_step;
  write_start(resumed_step == 0 ? "" : fmt::format("_step_{:08}", resumed_step), start);
  flush();
}

// All columns but those of named sets.
void MetricsFile::cut_after(std::int64_t step) {
  rows_ = rows_until(columns_[0], rows_, step, path_);
  validation_rows_ = rows_until(columns_[row_columns_], validation_rows_, step, path_);
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    const index_t rows = c < row_columns_ ? rows_ : validation_rows_;
    const auto length = static_cast<hsize_t>(rows);
    checked(H5Dset_extent(columns_[c].id(), &length), path_);
    require_end(columns_[c], rows, layout_[c].name);
  }
  if (hashes_) hashes_->cut(rows_);
  if (validation_hashes_) validation_hashes_->cut(validation_rows_);
}

void MetricsFile::drop_after(std::int64_t step) {
  flush();
  cut_after(step);
  open_named_losses();
  flush();
}

// Those of samples that the run has still before it.
void MetricsFile::forget_bad_steps(index_t sample_cursor) {
  if (!hdf5::exists(file_.id(), bad_steps)) return;
  MetricsTable table(file_.id(), bad_steps, bad_step_columns, path_);
  const std::vector<std::int64_t> first = table.integers(first_sample_column);
  table.cut(std::ranges::count_if(first, [&](std::int64_t sample) { return sample < sample_cursor; }));
}

// The row of this start comes after those of earlier ones.
void MetricsFile::open_starts(const MetricsStart& start, Log& log) {
  starts_ = std::make_unique<MetricsTable>(file_.id(), starts_group, start_columns, path_);
  MetricsTable checkpoints(file_.id(), start_checkpoints, start_checkpoint_columns, path_);
  if (start.keeps_starts && !set_aside_.empty() && files::kind_of_name(set_aside_) == files::Kind::file) {
    try {
      const hdf5::File before = hdf5::open_read_only(set_aside_);
      if (hdf5::exists(before.id(), starts_group)) {
        starts_->append_all({before.id(), starts_group, start_columns, set_aside_});
        checkpoints.append_all({before.id(), start_checkpoints, start_checkpoint_columns, set_aside_});
        hdf5::open_group(before.id(), lineage, set_aside_.string());
        checked(H5Ocopy(before.id(), lineage, file_.id(), lineage, H5P_DEFAULT, H5P_DEFAULT), path_);
      }
    } catch (const Error& error) {
      log.warn("earlier starts of this run are not in {}: {}", path_.string(), reason(error));
    }
  }
  checked(H5Fflush(file_.id(), H5F_SCOPE_GLOBAL), path_);  // reading asks for the bytes on the disk
  starts_->tell_damaged_rows(log);
  checkpoints.tell_damaged_rows(log);
  start_ = start.start;
  start_.start = starts_->rows() + 1;
  starts_->append(&start_);
  if (!hdf5::exists(file_.id(), lineage)) {
    const hdf5::Group made(checked(H5Gcreate2(file_.id(), lineage, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), path_));
  }
  write_provenance(fmt::format("{}/start_{:04}", lineage, start_.start), start.lineage);
}

void MetricsFile::update_start(const StartRow& row) {
  const std::int64_t start = start_.start, resumed = start_.resumed_step;
  start_ = row;
  start_.start = start, start_.resumed_step = resumed;
  start_.lowest_step = std::min(row.lowest_step, resumed);
  if (row.last_step < 0) start_.last_step = resumed;
  flush_if_due();
}

void MetricsFile::append_checkpoint(std::int64_t step, double training_seconds) {
  make_room(starting_room);
  const StartCheckpointRow row{start_.start, step, training_seconds};
  MetricsTable(file_.id(), start_checkpoints, start_checkpoint_columns, path_).append(&row);
  flush();
}

void MetricsFile::append_bad_step(const BadStepRow& row) {
  make_room(starting_room);
  MetricsTable table(file_.id(), bad_steps, bad_step_columns, path_);
  table.append(&row);
  flush();
}

void MetricsFile::create() {
  rows_ = validation_rows_ = 0;
  std::error_code ignored;
  if (path_.has_parent_path()) fs::create_directories(path_.parent_path(), ignored);
  try {
    reserve_space(path_, 0, starting_room);
  } catch (const Error&) {
    fs::remove(path_, ignored);  // else the next run would take it for an old metrics file
    throw;
  }
  open(hdf5::Access::create);
  hdf5::write_string(file_.id(), "format", "nanotron_hpc metrics");
  hdf5::write_integer(file_.id(), "version", 1);
  for (std::size_t c = 0; c < layout_.size(); ++c) {
    const auto& [name, kind, unit, offset, description] = layout_[c];
    create_column(file_.id(), name, c < row_columns_ ? row_columns[0].name : validation_columns[0].name, type_of(kind),
                  unit, description, path_);
  }
  open_columns();
  open_named_losses();
  open_hashes();
}

void MetricsFile::open(hdf5::Access access) {
  store_ = std::make_shared<hdf5::FileStore>(path_, access);
  file_ = hdf5::open_through(store_, access);
}

void MetricsFile::open_columns() {
  columns_.clear();
  for (std::size_t c = 0; c < layout_.size(); ++c)
    columns_.push_back(hdf5::open_dataset(file_.id(), layout_[c].name, path_.string()));
}

void MetricsFile::forget_named_losses() {
  named_losses_.resize(sets_);
  for (NamedLoss& loss : named_losses_) loss.dataset = {};
}

// Creates the datasets that the file lacks. Missing rows become NaN, as do later rows of sets that only the file has.
void MetricsFile::open_named_losses() {
  const auto rows = static_cast<hsize_t>(validation_rows_);
  for (const std::string& name : names_in_root(file_.id())) {
    const auto is_it = [&](const NamedLoss& loss) { return loss.name == name; };
    if (name.starts_with(named_loss) && std::ranges::none_of(named_losses_, is_it))
      named_losses_.push_back({name, {}, {}});
  }
  for (NamedLoss& loss : named_losses_) {
    if (!hdf5::exists(file_.id(), loss.name)) {
      create_column(file_.id(), loss.name, validation_columns[0].name, H5T_NATIVE_DOUBLE, "nats per token",
                    "mean over the targets of the validation set of this name", path_);
    }
    loss.dataset = hdf5::open_dataset(file_.id(), loss.name, path_.string());
    rows_of(loss.dataset, loss.name, path_);
    checked(H5Dset_extent(loss.dataset.id(), &rows), path_);
    require_end(loss.dataset, validation_rows_, loss.name);
  }
}

void MetricsFile::append_named_losses() {
  for (NamedLoss& loss : named_losses_) {
    const auto count = static_cast<index_t>(loss.pending.size());
    if (count == 0) continue;
    append_values(loss.dataset.id(), H5T_NATIVE_DOUBLE, validation_rows_ - count, loss.pending.data(), count, path_);
    loss.pending.clear();
  }
}

void MetricsFile::write_start(const std::string& suffix, const MetricsStart& start) {
  if (H5Aexists(file_.id(), "title") > 0) checked(H5Adelete(file_.id(), "title"), path_);
  write_text(file_.id(), "title", std::string_view(start.title).substr(0, attribute_limit));
  write_provenance("provenance" + suffix, start.provenance);
  write_deck("deck" + suffix, start.deck);
}

void MetricsFile::write_deck(const std::string& name, const std::string& text) {
  remove_link(file_.id(), name, path_);
  const hdf5::Datatype type = hdf5::string_type(text.size());
  const hdf5::Dataspace scalar(H5Screate(H5S_SCALAR));
  const hdf5::Dataset deck(checked(
      H5Dcreate2(file_.id(), name.c_str(), type.id(), scalar.id(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), path_));
  if (!text.empty()) checked(H5Dwrite(deck.id(), type.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data()), path_);
}

void MetricsFile::write_provenance(const std::string& group, const Provenance& provenance) {
  remove_link(file_.id(), group, path_);
  const hdf5::Group target(
      checked(H5Gcreate2(file_.id(), group.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), path_));
  for (const auto& [key, value] : provenance)
    if (!key.empty() && H5Aexists(target.id(), key.c_str()) == 0)
      write_text(target.id(), key.c_str(), std::string_view(value).substr(0, attribute_limit));
}

void MetricsFile::append(const MetricsRow& row) {
  pending_.push_back(row);
  flush_if_due();
}

void MetricsFile::append_validation(std::int64_t step, std::span<const double> losses) {
  NANOTRON_REQUIRE(losses.size() == std::max<std::size_t>(sets_, 1), "{} losses", losses.size());
  double sum = 0.0;
  for (const double loss : losses) sum += loss;
  pending_validation_.push_back({step, sum / static_cast<double>(losses.size())});
  for (std::size_t i = 0; i < named_losses_.size(); ++i)
    named_losses_[i].pending.push_back(i < sets_ ? losses[i] : std::numeric_limits<double>::quiet_NaN());
  flush_if_due();
}

void MetricsFile::flush_if_due() {
  if (wall_seconds() - last_flush_ >= 1.0 || pending_.size() >= pending_limit ||
      pending_validation_.size() >= pending_limit)
    flush();
}

// Reserves `bytes` (an upper bound of the growth) after the end of the file: HDF5 itself must not find a full disk.
void MetricsFile::make_room(std::int64_t bytes) const {
  const std::optional<std::int64_t> size = files::bytes_of(path_);
  if (!size) fail(ExitCode::system_error, {.what = "the metrics file was removed", .where = path_.string()});
  reserve_space(path_, *size, *size + bytes);
}

void MetricsFile::flush() {
  const auto column_room =
      static_cast<std::int64_t>(8 * (std::max(pending_.size(), pending_validation_.size()) + 2 * chunk));
  make_room(metadata_room + static_cast<std::int64_t>(columns_.size() + named_losses_.size() + 2) * column_room);
  const auto write_all = [&](auto& pending, std::size_t from, std::size_t to, index_t& rows) {
    if (pending.empty()) return;
    const auto count = static_cast<index_t>(pending.size());
    for (std::size_t c = from; c < to; ++c) {
      gathered_.resize(pending.size());
      for (std::size_t i = 0; i < pending.size(); ++i)
        std::memcpy(&gathered_[i], reinterpret_cast<const char*>(&pending[i]) + layout_[c].offset, 8);
      append_values(columns_[c].id(), type_of(layout_[c].kind), rows, gathered_.data(), count, path_);
    }
    rows += count;
    pending.clear();
  };
  append_hashes();
  write_all(pending_, 0, row_columns_, rows_);
  write_all(pending_validation_, row_columns_, columns_.size(), validation_rows_);
  append_named_losses();
  if (starts_) starts_->replace_last(&start_);
  checked(H5Fflush(file_.id(), H5F_SCOPE_GLOBAL), path_);
  store_->require_written();
  last_flush_ = wall_seconds();
}

void MetricsFile::close() {
  flush();
  columns_.clear();
  named_losses_.clear();
  hashes_.reset();
  validation_hashes_.reset();
  starts_.reset();
  file_.close(ExitCode::system_error, "closing " + path_.string());
  store_->close();
}

}  // namespace nanotron::io
