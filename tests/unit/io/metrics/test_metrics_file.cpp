// ranks: 1
#include "nanotron/io/metrics/metrics_file.hpp"

#include <gtest/gtest.h>
#include <hdf5_hl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>

#include "support/file_size_limit.hpp"
#include "support/world.hpp"
#include "unit/data/scratch.hpp"

namespace nanotron::io {
namespace {

namespace fs = std::filesystem;
using test::Scratch;

MetricsRow row_of(std::int64_t step, double loss) {
  MetricsRow row;
  row.step = step;
  row.loss = loss;
  row.tokens = 10 * step;
  row.token_hash = 0xFFFFFFFFFFFFFF00ull + static_cast<std::uint64_t>(step);
  return row;
}

template <class T>
std::vector<T> read(const fs::path& path, const char* name, hid_t type) {
  const hdf5::File file = hdf5::open_read_only(path);
  const hdf5::Dataset dataset = hdf5::open_dataset(file.id(), name, path.string());
  std::vector<T> values(static_cast<std::size_t>(hdf5::checked_shape(dataset, name, path.string())[0]));
  H5Dread(dataset.id(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  return values;
}
std::vector<std::int64_t> steps(const fs::path& path, const char* name = "step") {
  return read<std::int64_t>(path, name, H5T_NATIVE_INT64);
}
std::vector<double> reals(const fs::path& path, const char* name) {
  return read<double>(path, name, H5T_NATIVE_DOUBLE);
}

const MetricsStart start{.provenance = {{"program", "test"}, {"empty", ""}}, .deck = "&run /\n", .title = "first"};
Log silent(false);

TEST(MetricsFile, HasOneDatasetPerQuantity) {
  const Scratch scratch(test::world());
  const fs::path path = scratch / "run/metrics.h5";
  {
    MetricsFile metrics(path, 0, start, silent);
    for (std::int64_t step = 1; step <= 5000; ++step) metrics.append(row_of(step, 1.0 / double(step)));
    metrics.append_validation(5000, std::array{2.5});
  }
  ASSERT_EQ(steps(path).size(), 5000u);
  EXPECT_EQ(steps(path)[4999], 5000);
  EXPECT_EQ(steps(path, "tokens")[4999], 50000);
  EXPECT_EQ(reals(path, "loss")[1], 0.5);
  for (const char* name : {"grad_norm", "learning_rate", "seconds", "tokens_per_second", "mfu", "gemm_fraction"})
    EXPECT_EQ(reals(path, name).size(), 5000u) << name;
  EXPECT_EQ(read<std::uint64_t>(path, "token_hash", H5T_NATIVE_UINT64)[9], 0xFFFFFFFFFFFFFF0Aull);
  EXPECT_EQ(steps(path, "validation_step"), std::vector<std::int64_t>{5000});
  EXPECT_EQ(reals(path, "validation_loss"), std::vector<double>{2.5});
}

TEST(MetricsFile, ResumingGivesOneValuePerStep) {
  const Scratch scratch(test::world());
  const fs::path path = scratch / "metrics.h5";
  {
    MetricsFile metrics(path, 0, start, silent);
    for (std::int64_t step = 1; step <= 10; ++step) metrics.append(row_of(step, 1.0));
    metrics.append_validation(5, std::array{1.0});
    metrics.append_validation(10, std::array{1.0});
  }
  for (int again = 0; again < 2; ++again) {
    MetricsFile metrics(path, 6, start, silent);
    EXPECT_TRUE(metrics.set_aside().empty());
    for (std::int64_t step = 7; step <= 8; ++step) metrics.append(row_of(step, 2.0));
  }
  EXPECT_EQ(steps(path), (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(reals(path, "loss"), (std::vector<double>{1, 1, 1, 1, 1, 1, 2, 2}));
  EXPECT_EQ(steps(path, "validation_step"), std::vector<std::int64_t>{5});
}

std::string text_of(const hdf5::File& file, const char* name) {
  const hdf5::Dataset dataset = hdf5::open_dataset(file.id(), name, "");
  const hdf5::Datatype type(H5Dget_type(dataset.id()));
  std::string text(H5Tget_size(type.id()), '\0');
  H5Dread(dataset.id(), type.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data());
  return text;
}

TEST(MetricsFile, ExplainsItself) {
  const Scratch scratch(test::world());
  const fs::path path = scratch / "metrics.h5";
  { MetricsFile(path, 0, start, silent).append(row_of(1, 1.0)); }
  for (const char* title : {"second", ""})  // twice from the same step: the later one holds
    MetricsFile(path, 1, {.provenance = start.provenance, .deck = std::string("! ") + title, .title = title}, silent);
  const hdf5::File file = hdf5::open_read_only(path);
  EXPECT_EQ(hdf5::read_string(file.id(), "title", ""), "");
  EXPECT_EQ(text_of(file, "deck"), "&run /\n");
  EXPECT_EQ(text_of(file, "deck_step_00000001"), "! ");
  EXPECT_TRUE(hdf5::exists(file.id(), "provenance_step_00000001"));
  for (const char* name : {"step", "loss", "grad_norm", "learning_rate", "seconds", "tokens_per_second", "mfu",
                           "gemm_fraction", "tokens", "token_hash", "validation_step", "validation_loss"}) {
    const hdf5::Dataset series = hdf5::open_dataset(file.id(), name, "");
    EXPECT_TRUE(hdf5::read_string(series.id(), "units", "").has_value()) << name;
    EXPECT_TRUE(hdf5::read_string(series.id(), "long_name", "").value_or("").ends_with(".")) << name;
  }
}

// xarray, netCDF and HDFView name the axis of a column by them.
TEST(MetricsFile, StepsAreTheDimensionScaleOfTheirRows) {
  const Scratch scratch(test::world());
  const fs::path path = scratch / "metrics.h5";
  MetricsStart with_sets = start;
  with_sets.validation_sets = {"code", "text"};
  { MetricsFile(path, 0, with_sets, silent).append(row_of(1, 1.0)); }
  with_sets.validation_sets = {"code", "more"};
  { MetricsFile(path, 1, with_sets, silent).append(row_of(2, 1.0)); }
  const hdf5::File file = hdf5::open_read_only(path);
  const auto expect_attached = [&](const char* scale_name, std::initializer_list<const char*> names) {
    const hdf5::Dataset scale = hdf5::open_dataset(file.id(), scale_name, "");
    EXPECT_GT(H5DSis_scale(scale.id()), 0) << scale_name;
    for (const char* name : names) {
      EXPECT_GT(H5DSis_attached(hdf5::open_dataset(file.id(), name, "").id(), scale.id(), 0), 0) << name;
    }
  };
  expect_attached("step", {"loss", "seconds", "token_hash", "mfu", "row_hash"});
  expect_attached("validation_step", {"validation_hash", "validation_loss", "validation_loss_code",
                                      "validation_loss_text", "validation_loss_more"});
}

TEST(MetricsFile, ATitleOfAnyLengthIsKeptAsFarAsAnAttributeGoes) {
  const Scratch scratch(test::world());
  const fs::path path = scratch / "metrics.h5";
  const std::string title(70'000, 't');
  const MetricsStart long_one{.provenance = {{"command", title}}, .deck = title, .title = title};
  { MetricsFile(path, 0, long_one, silent).append(row_of(1, 1.0)); }
  const hdf5::File file = hdf5::open_read_only(path);
  EXPECT_EQ(hdf5::read_string(file.id(), "title", ""), title.substr(0, 32 << 10));
  EXPECT_EQ(text_of(file, "deck"), title);
}

TEST(MetricsFile, FreshRunsKeepAllOldFiles) {
  const Scratch scratch(test::world());
  const fs::path path = scratch / "metrics.h5";
  for (int run = 0; run < 3; ++run) MetricsFile(path, 0, start, silent).append(row_of(run + 1, 1.0));
  EXPECT_EQ(steps(path), std::vector<std::int64_t>{3});
  EXPECT_EQ(steps(path.string() + ".previous-1"), std::vector<std::int64_t>{1});
  EXPECT_EQ(steps(path.string() + ".previous-2"), std::vector<std::int64_t>{2});
}

TEST(MetricsFile, IsReadableAtAnyTimeAndAfterAKill) {
  const Scratch scratch(test::world());
  const fs::path path = scratch / "metrics.h5", copy = scratch / "copy.h5";
  MetricsFile metrics(path, 0, start, silent);
  for (std::int64_t step = 1; step <= 3000; ++step) {
    metrics.append(row_of(step, 1.0));
    if (step % 500 != 0) continue;
    metrics.flush();  // what a kill leaves is the file as it is on disk
    fs::copy_file(path, copy, fs::copy_options::overwrite_existing);
    EXPECT_EQ(steps(copy).size(), static_cast<std::size_t>(step));
    MetricsFile resumed(copy, step - 1, start, silent);
    EXPECT_TRUE(resumed.set_aside().empty());
  }
}

TEST(MetricsFile, ADamagedFileIsReplacedAndTheLogSaysSo) {
  const Scratch scratch(test::world());
  const fs::path path = scratch / "metrics.h5", aside = path.string() + ".previous-2";
  test::write_bytes(path, std::vector<char>(1000, 'x'));
  test::write_bytes(path.string() + ".previous-1", {'o', 'l', 'd'});
  {
    Log log(true);
    log.open(scratch / "run.log");
    MetricsFile metrics(path, 5, start, log);
    EXPECT_EQ(metrics.set_aside(), aside);
    metrics.append(row_of(6, 1.0));
  }
  EXPECT_EQ(steps(path), std::vector<std::int64_t>{6});
  EXPECT_EQ(test::read_bytes(aside).size(), 1000u);
  EXPECT_EQ(test::read_bytes(path.string() + ".previous-1").size(), 3u);
  const auto told = test::read_bytes(scratch / "run.log");
  const std::string text(told.begin(), told.end());
  EXPECT_NE(text.find("warning: "), std::string::npos) << text;
  EXPECT_NE(text.find(aside.string()), std::string::npos) << text;
}

std::string told_at_resume(const fs::path& path, std::int64_t step, const MetricsStart& at) {
  const fs::path file = path.parent_path() / "run.log";
  fs::remove(file);
  Log log(true);
  log.open(file);
  EXPECT_TRUE(MetricsFile(path, step, at, log).set_aside().empty());
  const auto told = test::read_bytes(file);
  return {told.begin(), told.end()};
}

void change(const fs::path& path, const char* name, hsize_t row) {
  const hdf5::File file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
  const hdf5::Dataset column = hdf5::open_dataset(file.id(), name, "");
  const hsize_t one = 1;
  const hdf5::Dataspace memory(H5Screate_simple(1, &one, nullptr)), place(H5Dget_space(column.id()));
  H5Sselect_hyperslab(place.id(), H5S_SELECT_SET, &row, nullptr, &one, nullptr);
  const double other = 0.25;
  EXPECT_GE(H5Dwrite(column.id(), H5T_NATIVE_DOUBLE, memory.id(), place.id(), H5P_DEFAULT, &other), 0);
}

TEST(MetricsFile, HasTheColumnsOfTheKindOfModel) {
  static constexpr std::array kind{ExtraColumn{"evenness", "1", "How even."}, ExtraColumn{"spread", "m", "How wide."}};
  const Scratch scratch(test::world());
  const fs::path path = scratch / "metrics.h5";
  MetricsStart of_kind = start;
  of_kind.extra = kind;
  for (const std::int64_t step : {1, 2}) {
    MetricsRow row = row_of(step, 1.0);
    row.extra = {0.5 * static_cast<double>(step), 7.0};
    MetricsFile metrics(path, step - 1, of_kind, silent);
    EXPECT_TRUE(metrics.set_aside().empty());
    metrics.append(row);
    metrics.append_validation(step, std::array{3.0});
  }
  EXPECT_EQ(reals(path, "evenness"), (std::vector<double>{0.5, 1.0}));
  EXPECT_EQ(reals(path, "spread"), (std::vector<double>{7.0, 7.0}));
  EXPECT_EQ(reals(path, "validation_loss"), (std::vector<double>{3.0, 3.0}));
  {
    const hdf5::File file = hdf5::open_read_only(path);
    const hdf5::Dataset spread = hdf5::open_dataset(file.id(), "spread", "");
    EXPECT_EQ(hdf5::read_string(spread.id(), "units", ""), "m");
    EXPECT_EQ(hdf5::read_string(spread.id(), "long_name", ""), "How wide.");
  }
  EXPECT_EQ(told_at_resume(path, 2, of_kind), "");
  change(path, "spread", 1);
  EXPECT_NE(told_at_resume(path, 2, of_kind), "");
}

TEST(MetricsFile, ADamagedRowIsToldByItsHash) {
  for (const char* damaged : {"loss", "mfu", "validation_loss", "validation_loss_text"}) {
    const Scratch scratch(test::world());
    const fs::path path = scratch / "metrics.h5";
    MetricsStart with_sets = start;
    with_sets.validation_sets = {"text", "code"};
    {
      MetricsFile metrics(path, 0, with_sets, silent);
      for (std::int64_t step = 1; step <= 3; ++step) {
        metrics.append(row_of(step, 1.0));
        metrics.append_validation(step, std::array{1.5, 2.5});
      }
    }
    with_sets.validation_sets = {"more"};  // its losses are NaN in earlier rows
    EXPECT_EQ(told_at_resume(path, 3, with_sets), "");
    EXPECT_EQ(told_at_resume(path, 3, start), "");
    change(path, damaged, 1);
    const std::string text = told_at_resume(path, 3, start), of = damaged[0] == 'v' ? "validation" : "training";
    EXPECT_NE(text.find("1 rows of " + of + " do not match their hashes; the first is that of step 2"),
              std::string::npos)
        << damaged << text;
  }
}

TEST(MetricsFile, ADamagedRowOfATableIsToldByItsHash) {
  MetricsStart at = start;
  at.sample_cursor = 10;
  for (const char* damaged : {"starts/training_seconds", "start_checkpoints/step", "bad_steps/loss"}) {
    const Scratch scratch(test::world());
    const fs::path path = scratch / "metrics.h5";
    for (const std::int64_t before : {0, 2}) {
      MetricsFile metrics(path, before, at, silent);
      for (const std::int64_t step : {before + 1, before + 2}) {
        metrics.append(row_of(step, 1.0));
        metrics.append_bad_step({.step = step, .first_sample = step, .samples = 1});
        metrics.append_checkpoint(step, 1.0);
      }
    }
    EXPECT_EQ(told_at_resume(path, 4, at), "");
    change(path, damaged, 1);
    const std::string text = told_at_resume(path, 4, at), group = fs::path(damaged).parent_path();
    const std::string expected = "1 rows of " + group + " do not match their hashes; the first is row 2";
    EXPECT_NE(text.find(expected), std::string::npos) << damaged << text;
    MetricsStart again = at;  // as where no checkpoint is left
    again.keeps_starts = true;
    { MetricsFile(path, 0, again, silent); }
    const auto hashes = read<std::uint64_t>(path, "starts/row_hash", H5T_NATIVE_UINT64);
    EXPECT_EQ(hashes.size(), 5u);
    EXPECT_EQ(std::ranges::count(hashes, 0u), 0);
    EXPECT_EQ(told_at_resume(path, 1, at).find(expected) == std::string::npos, group == "bad_steps") << damaged;
  }
}

TEST(MetricsFile, RowsOfAFileWithoutHashesHaveNone) {
  const Scratch scratch(test::world());
  const fs::path path = scratch / "metrics.h5";
  { MetricsFile(path, 0, start, silent).append(row_of(1, 1.0)); }
  {
    const hdf5::File file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
    for (const char* name : {"row_hash", "validation_hash", "starts/row_hash"}) H5Ldelete(file.id(), name, H5P_DEFAULT);
  }
  EXPECT_EQ(told_at_resume(path, 1, start), "");
  { MetricsFile(path, 1, start, silent).append(row_of(2, 1.0)); }
  const auto hashes = read<std::uint64_t>(path, "row_hash", H5T_NATIVE_UINT64);
  EXPECT_EQ(hashes.at(0), 0u);
  EXPECT_NE(hashes.at(1), 0u);
  const auto of_starts = read<std::uint64_t>(path, "starts/row_hash", H5T_NATIVE_UINT64);
  EXPECT_EQ(std::ranges::count(of_starts, 0u), 1);
  EXPECT_EQ(of_starts.size(), 3u);
}

// Whatever is damaged, also the tables of starts, the run continues with another file. A column of fixed length is
// found before a row is added to it.
TEST(MetricsFile, NothingDamagedLocksARunOut) {
  for (const char* lost : {"starts/last", "starts", "starts/row_hash", "start_checkpoints/row_hash",
                           "start_checkpoints/step", "step", "validation_loss", "row_hash"}) {
    for (const bool is_scalar : {true, false}) {
      const Scratch scratch(test::world());
      const fs::path path = scratch / "metrics.h5";
      {
        MetricsFile metrics(path, 0, start, silent);
        metrics.append(row_of(1, 1.0));
        metrics.append_checkpoint(1, 1.0);
      }
      {
        const hdf5::File file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
        hdf5::silence();
        H5Ldelete(file.id(), lost, H5P_DEFAULT);
        const hsize_t rows = 1;
        const hdf5::Dataspace space(is_scalar ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &rows, nullptr));
        const hdf5::Dataset other(
            H5Dcreate2(file.id(), lost, H5T_NATIVE_INT64, space.id(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
      }
      MetricsFile metrics(path, 1, start, silent);
      metrics.append(row_of(2, 1.0));
      EXPECT_NO_THROW(metrics.append_checkpoint(2, 1.0)) << lost;
      metrics.flush();
      EXPECT_EQ(steps(path).back(), 2) << lost;
    }
  }
}

TEST(MetricsFile, WhatIsNoFileIsMovedAside) {
  for (const bool is_pipe : {false, true}) {
    const Scratch scratch(test::world());
    const fs::path path = scratch / "metrics.h5";
    if (is_pipe)
      ASSERT_EQ(::mkfifo(path.c_str(), 0666), 0);
    else
      fs::create_directory(path);
    MetricsStart resumed = start;
    resumed.keeps_starts = true;
    MetricsFile metrics(path, 5, resumed, silent);
    EXPECT_EQ(metrics.set_aside(), path.string() + ".previous-1");
    EXPECT_TRUE(fs::is_regular_file(path));
  }
}

TEST(MetricsFile, AFullDiskMovesNothingAside) {
  const Scratch scratch(test::world());
  const fs::path path = scratch / "metrics.h5";
  { MetricsFile(path, 0, start, silent).append(row_of(1, 1.0)); }
  const test::FileSizeLimit limit(fs::file_size(path) + 1000);
  test::expect_error(ExitCode::system_error, "cannot grow by", [&] { MetricsFile(path, 1, start, silent); });
  EXPECT_EQ(steps(path), std::vector<std::int64_t>{1});
  EXPECT_FALSE(fs::exists(path.string() + ".previous-1"));
}

TEST(MetricsFile, AFullDiskIsAShortErrorAndHarmsNoRow) {
  const Scratch scratch(test::world());
  const fs::path path = scratch / "metrics.h5";
  {
    MetricsFile metrics(path, 0, start, silent);
    metrics.append(row_of(1, 1.0));
    metrics.flush();
    const test::FileSizeLimit limit(fs::file_size(path) + 1000);
    metrics.append(row_of(2, 1.0));
    test::expect_error(ExitCode::system_error, "bytes: File too large", [&] { metrics.flush(); });
    test::expect_error(ExitCode::system_error, path.string(), [&] { metrics.flush(); });
  }
  EXPECT_EQ(steps(path), (std::vector<std::int64_t>{1, 2}));  // when it was closed there was room again
  const test::FileSizeLimit limit(1000);
  const fs::path other = scratch / "other.h5";
  test::expect_error(ExitCode::system_error, "other.h5", [&] { MetricsFile(other, 0, start, silent); });
  EXPECT_FALSE(fs::exists(other));
}

}  // namespace
}  // namespace nanotron::io
