#pragma once

// The columns of metrics.h5. Private to the io layer.

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/data/files/hdf5.hpp"
#include "nanotron/io/metrics/metrics_file.hpp"

namespace nanotron::io {

enum class Kind { integer, unsigned_integer, real };

struct Column {
  const char* name;
  Kind kind;
  const char* unit;
  std::size_t offset;  // in MetricsRow
  const char* description;
};

// The columns of every run, and the two of Validation; each value is 8 bytes.
inline constexpr std::array row_columns{
    Column{"step", Kind::integer, "updates", offsetof(MetricsRow, step), "Steps done, this one included."},
    Column{"loss", Kind::real, "nats per token", offsetof(MetricsRow, loss),
           "Mean cross-entropy over the target tokens of the global batch, before the update."},
    Column{"grad_norm", Kind::real, "1", offsetof(MetricsRow, grad_norm),
           "Global L2 norm of the gradient, before clipping."},
    Column{"learning_rate", Kind::real, "1", offsetof(MetricsRow, learning_rate), "Learning rate of this update."},
    Column{"seconds", Kind::real, "s", offsetof(MetricsRow, seconds),
           "Wall time of this step, without validation and checkpoint."},
    Column{"tokens_per_second", Kind::real, "1/s", offsetof(MetricsRow, tokens_per_second),
           "Tokens of the global batch over the seconds of this step."},
    Column{"mfu", Kind::real, "1", offsetof(MetricsRow, mfu),
           "Model FLOPs utilisation: FLOP/s of the model over the stated peak of the devices; NaN where none is "
           "known."},
    Column{"gemm_fraction", Kind::real, "1", offsetof(MetricsRow, gemm_fraction),
           "FLOP/s of the model over the GEMM peak that was measured at the start on the same ranks."},
    Column{"tokens", Kind::integer, "tokens", offsetof(MetricsRow, tokens), "Target tokens since step 0."},
    Column{"token_hash", Kind::unsigned_integer, "XXH3-64", offsetof(MetricsRow, token_hash),
           "Sum of the hashes of this step's sequences: equal sums mean the same tokens in the same order."}};
inline constexpr std::array validation_columns{
    Column{"validation_step", Kind::integer, "updates", 0, "Steps done before this validation."},
    Column{"validation_loss", Kind::real, "nats per token", 8,
           "Mean cross-entropy over the target tokens of the validation; of several sets their mean, each with the "
           "same weight."}};

// Those of a file: of every run, of a kind of model, of validation.
inline std::vector<Column> columns_of_file(std::span<const ExtraColumn> extra) {
  NANOTRON_REQUIRE(extra.size() <= ExtraValues{}.size(), "{} columns of a kind of model", extra.size());
  std::vector<Column> columns(row_columns.begin(), row_columns.end());
  for (std::size_t i = 0; i < extra.size(); ++i) {
    columns.push_back({extra[i].name, Kind::real, extra[i].unit, offsetof(MetricsRow, extra) + i * sizeof(double),
                       extra[i].description});
  }
  columns.insert(columns.end(), validation_columns.begin(), validation_columns.end());
  return columns;
}

// The group bad_steps, of BadStepRow.
inline constexpr const char* bad_steps = "bad_steps";
inline constexpr std::array bad_step_columns{
    Column{"step", Kind::integer, "updates", offsetof(BadStepRow, step), "The step that updated nothing."},
    Column{"first_sample", Kind::integer, "samples", offsetof(BadStepRow, first_sample),
           "Global index of the first sample of its batch."},
    Column{"samples", Kind::integer, "samples", offsetof(BadStepRow, samples), "Samples of its batch."},
    Column{"left_out_from", Kind::integer, "samples", offsetof(BadStepRow, left_out_from),
           "First sample that was left out with it; first_sample where only its own update was skipped."},
    Column{"next_step", Kind::integer, "updates", offsetof(BadStepRow, next_step), "The step that was computed next."},
    Column{"token_hash", Kind::unsigned_integer, "XXH3-64", offsetof(BadStepRow, token_hash),
           "Sum of the hashes of its sequences, as /token_hash."},
    Column{"loss", Kind::real, "nats per token", offsetof(BadStepRow, loss), "Its mean loss."},
    Column{"grad_norm", Kind::real, "1", offsetof(BadStepRow, grad_norm), "Its gradient norm, before clipping."}};
inline constexpr std::size_t first_sample_column = 1;

// The groups starts and start_checkpoints.
inline constexpr const char *starts_group = "starts", *start_checkpoints = "start_checkpoints", *lineage = "lineage";
inline constexpr std::array start_columns{
    Column{"start", Kind::integer, "1", offsetof(StartRow, start), "Number of the start of the program, from 1."},
    Column{"begin", Kind::real, "s", offsetof(StartRow, begin), "When the program began, since 1970."},
    Column{"last", Kind::real, "s", offsetof(StartRow, last), "The last time that it was seen running, since 1970."},
    Column{"submitted", Kind::real, "s", offsetof(StartRow, submitted),
           "When its job was submitted, since 1970; NaN: not known."},
    Column{"job_began", Kind::real, "s", offsetof(StartRow, job_began),
           "When its job began to run, since 1970; NaN: not known."},
    Column{"resumed_step", Kind::integer, "updates", offsetof(StartRow, resumed_step), "The step it resumed from."},
    Column{"last_step", Kind::integer, "updates", offsetof(StartRow, last_step), "Its last step."},
    Column{"lowest_step", Kind::integer, "updates", offsetof(StartRow, lowest_step),
           "The lowest step that training went back to; else resumed_step."},
    Column{"training_seconds", Kind::real, "s", offsetof(StartRow, training_seconds),
           "Of steps, validation and output, without checkpoints."},
    Column{"checkpoint_seconds", Kind::real, "s", offsetof(StartRow, checkpoint_seconds),
           "That training waited for checkpoints."},
    Column{"left_out_seconds", Kind::real, "s", offsetof(StartRow, left_out_seconds),
           "Of training_seconds: steps that training went back from."},
    Column{"end", Kind::integer, "1", offsetof(StartRow, end),
           "1: finished, 2: stopped, 3: failed, 0: running or killed."}};
inline constexpr std::array start_checkpoint_columns{
    Column{"start", Kind::integer, "1", offsetof(StartCheckpointRow, start), "Number of the start that wrote it."},
    Column{"step", Kind::integer, "updates", offsetof(StartCheckpointRow, step), "Steps in the checkpoint."},
    Column{"training_seconds", Kind::real, "s", offsetof(StartCheckpointRow, training_seconds),
           "Of the start before the checkpoint, without those left out."}};

inline constexpr std::size_t checkpoint_step_column = 1;

inline constexpr hsize_t chunk = 1024;

inline hid_t type_of(Kind kind) {
  switch (kind) {
    case Kind::integer:
      return H5T_NATIVE_INT64;
    case Kind::unsigned_integer:
      return H5T_NATIVE_UINT64;
    case Kind::real:
      break;
  }
  return H5T_NATIVE_DOUBLE;
}

/// What HDF5 refuses is damage, Error(data_error): the system's failures are those of the FileStore.
template <class T>
T checked(T status, const std::filesystem::path& path) {
  return hdf5::check(status, ExitCode::data_error, fmt::format("{}", path.string()));
}
/// Writes an attribute, with such errors.
void write_text(hid_t object, const char* name, std::string_view value);

/// Rows of a column. Error(data_error) for what hdf5::checked_shape refuses, other than one dimension, values that are
/// no numbers of 8 bytes, and more rows than a file of this size can have, compressed as well as may be.
index_t rows_of(const hdf5::Dataset& dataset, const std::string& name, const std::filesystem::path& path);

/// Reads the last of `rows` values: where the place that later ones come to is damaged, it is known now.
/// Error(data_error).
void require_end(const hdf5::Dataset& dataset, index_t rows, const std::string& name);

/// Adds an empty column to a file or a group of it. The column named `scale` is the dimension scale of its rows (HDF5
/// Dimension Scales; units and long_name as in the CF conventions): xarray and HDFView then name the axis.
void create_column(hid_t parent, const std::string& name, const std::string& scale, hid_t type, const char* unit,
                   const char* description, const std::filesystem::path& path);
/// Writes `count` values of 8 bytes after the first `first` ones.
void append_values(hid_t dataset, hid_t type, index_t first, const void* values, index_t count,
                   const std::filesystem::path& path);

}  // namespace nanotron::io
