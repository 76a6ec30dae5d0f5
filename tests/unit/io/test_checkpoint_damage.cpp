// ranks: 1 2
#include <gtest/gtest.h>

#include <random>

#include "nanotron/io/checkpoint/checkpoint_reader.hpp"
#include "nanotron/io/checkpoint/checkpoint_writer.hpp"
#include "nanotron/io/checkpoint/manifest.hpp"
#include "support/world.hpp"
#include "unit/data/scratch.hpp"
#include "unit/io/fake_model.hpp"
#include "unit/io/manifest_of.hpp"

namespace nanotron::io {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::FakeState;
using test::Scratch;

class Damage : public ::testing::Test {
 protected:
  Damage() {
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
    save(10);
    save(20);
  }
  void save(std::int64_t step) {
    FakeState<float> state(rank, size);
    state.fill(static_cast<int>(step));
    CheckpointWriter(world, scratch.path(), 0, log).write(state.contents(step));
    MPI_Barrier(world);
  }
  /// `change` runs on rank 0.
  void on_root(const std::function<void()>& change) {
    MPI_Barrier(world);
    if (rank == 0) change();
    MPI_Barrier(world);
  }
  fs::path newest() const { return scratch / "step_00000020"; }
  std::optional<CheckpointReader> find(const std::string& resume) {
    return CheckpointReader::find(world, scratch.path(), resume, log);
  }
  /// The newest is refused by name when asked for, and 'auto' takes the one before.
  void expect_newest_refused(const std::string& words) {
    expect_error(ExitCode::data_error, words, [&] { find(newest().string()); });
    expect_error(ExitCode::data_error, "step_00000020", [&] { find(newest().string()); });
    const auto reader = find("auto");
    ASSERT_TRUE(reader.has_value());
    EXPECT_EQ(reader->info().state.step, 10);
  }
  /// Changes the HDF5 file and gives it a manifest that fits, as a faulty program would.
  void edit_newest(const std::function<void(hid_t)>& edit) {
    on_root([&] {
      const fs::path path = newest() / checkpoint_file_name;
      {
        const hdf5::File file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
        edit(file.id());
      }
      const std::string text = to_json(test::manifest_of(path, 20));
      test::write_bytes(newest() / manifest_file_name, {text.begin(), text.end()});
    });
  }
  void expect_read_refused(const std::string& words) {
    auto reader = find("auto");
    ASSERT_TRUE(reader.has_value());
    ASSERT_EQ(reader->info().state.step, 20);
    FakeState<float> state(rank, size);
    expect_error(ExitCode::data_error, words,
                 [&] { reader->read(state.parameters.tensors(), state.moments(), ScalarType::fp32); });
  }

  MPI_Comm world = test::world();
  int rank = 0, size = 1;
  Log log{false};
  Scratch scratch{test::world()};
};

TEST_F(Damage, NoneIsTheNewest) {
  EXPECT_EQ(find("auto")->info().state.step, 20);
  EXPECT_EQ(find((scratch / "step_00000010").string())->info().state.step, 10);
  EXPECT_EQ(find((scratch / "step_00000010/").string())->info().state.step, 10);
  EXPECT_EQ(find((scratch / "step_00000010/checkpoint.h5").string())->info().state.step, 10);
  EXPECT_EQ(find(scratch.path().string())->info().state.step, 20);
  EXPECT_FALSE(find("none").has_value());
  EXPECT_FALSE(CheckpointReader::find(world, scratch / "nothing", "auto", log).has_value());
  expect_error(ExitCode::data_error, "nothing", [&] { find((scratch / "nothing").string()); });
}

TEST_F(Damage, AnAbsentOneIsNotCalledHalfWritten) {
  const auto expect_refused = [&](const std::string& path, const std::string& words) {
    expect_error(ExitCode::data_error, words, [&] { find(path); });
    expect_error(ExitCode::data_error, "change:", [&] { find(path); });
  };
  on_root([&] {
    test::write_bytes(scratch / "file", {'x'});
    fs::create_directories(scratch / "run/checkpoints");
    fs::create_symlink("loop", scratch / "loop");
  });
  expect_refused((scratch / "step_00000099").string(), "there is no such folder");
  expect_refused((scratch / "file").string(), "it is a file, not a folder");
  expect_refused((scratch / "run/checkpoints").string(), "there is no checkpoint in it");
  expect_refused((scratch / "run").string(), "there is no checkpoint in the folder");
  expect_refused((scratch / "loop/step_00000001").string(), "symbolic links");
  on_root([&] { fs::remove(newest() / manifest_file_name); });
  expect_refused(newest().string(), "half-written");
  expect_error(ExitCode::deck_error, "checkpoint%resume is empty", [&] { find(""); });
}

TEST_F(Damage, EveryFlippedByteIsFound) {
  const fs::path file = newest() / checkpoint_file_name;
  const auto whole = test::read_bytes(file);
  std::mt19937 random(11);  // the same on all ranks
  for (int i = 0; i < 100; ++i) {
    const std::size_t at = random() % whole.size();
    const char change = static_cast<char>(1 + random() % 255);
    on_root([&] {
      auto bytes = whole;
      bytes[at] ^= change;
      test::write_bytes(file, bytes);
    });
    if (i == 0) expect_newest_refused("is damaged in block 0 (bytes 0 to");
    expect_error(ExitCode::data_error, "is damaged in block", [&] { CheckpointReader::open(world, newest()); });
  }
  on_root([&] { test::write_bytes(file, whole); });
  EXPECT_EQ(find("auto")->info().state.step, 20);
}

TEST_F(Damage, TheBadBlockIsNamed) {
  const fs::path folder = scratch / "step_00000030";
  const fs::path file = folder / checkpoint_file_name;
  const std::int64_t bytes = 3 * manifest_block_bytes + 5;
  on_root([&] {
    fs::create_directory(folder);
    test::write_bytes(file, std::vector<char>(static_cast<std::size_t>(bytes), 'x'));
  });
  const Manifest manifest = test::manifest_of(file, 30);
  EXPECT_EQ(manifest.blocks.size(), 4u);
  EXPECT_EQ(parse_manifest(to_json(manifest)).blocks, manifest.blocks);
  on_root([&] {
    const std::string text = to_json(manifest);
    test::write_bytes(folder / manifest_file_name, {text.begin(), text.end()});
    auto content = test::read_bytes(file);
    content[2 * manifest_block_bytes] = 'y';
    test::write_bytes(file, content);
  });
  expect_error(ExitCode::data_error, "block 2 (bytes 8388608 to 12582911)",
               [&] { CheckpointReader::open(world, folder); });
  on_root([&] { test::write_bytes(file, std::vector<char>(static_cast<std::size_t>(bytes), 'x')); });
  expect_error(ExitCode::data_error, "HDF5 says", [&] { CheckpointReader::open(world, folder); });
  EXPECT_EQ(find("auto")->info().state.step, 20);
}

TEST_F(Damage, ATruncatedFileIsRefused) {
  const fs::path file = newest() / checkpoint_file_name;
  const auto whole = test::read_bytes(file);
  for (const std::size_t keep : {std::size_t{0}, std::size_t{1}, whole.size() / 2, whole.size() - 1}) {
    on_root([&] { fs::resize_file(file, keep); });
    expect_newest_refused("bytes, the manifest says");
    on_root([&] { test::write_bytes(file, whole); });
  }
  on_root([&] { fs::remove(file); });
  expect_newest_refused("checkpoint.h5 cannot be read");
}

// A cursor near 2^63 would overflow with the next batch.
TEST_F(Damage, CountersThatNoRunReachesAreRefused) {
  for (const char* const counter : {"step", "tokens_seen", "sample_cursor", "adam_step"}) {
    for (const std::int64_t value : {INT64_MAX, INT64_MAX - 7, std::int64_t{-1}}) {
      edit_newest([&](hid_t file) {
        const hdf5::Group group = hdf5::open_group(file, "state", "");
        H5Adelete(group.id(), counter);
        hdf5::write_integer(group.id(), counter, value);
      });
      expect_newest_refused(counter);
    }
    save(20);
  }
}

TEST_F(Damage, AWrongManifestIsRefused) {
  const fs::path file = newest() / manifest_file_name;
  const auto bytes = test::read_bytes(file);
  const std::string good(bytes.begin(), bytes.end());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  const std::vector<std::string> bad{"",
                                     "{",
                                     "not json",
                                     "[]",
                                     "null",
                                     "{}",
                                     "{\"format\": 5}",
                                     good.substr(0, good.size() / 2),
                                     std::string(100, '\0'),
                                     std::string(20000, '['),
                                     "{\"blocks\": " + std::string(20000, '['),
                                     good + std::string(200000, ' '),
                                     with("nanotron_hpc checkpoint", "another checkpoint"),
                                     with("\"version\": 1", "\"version\": 2"),
                                     with("\"version\": 1", "\"version\": 1e99"),
                                     with("\"step\": 20", "\"step\": 21"),
                                     with("\"step\": 20", "\"step\": -1"),
                                     with("\"step\": 20", "\"step\": \"20\""),
                                     with("\"step\": 20", "\"step\": 18446744073709551615"),
                                     with("checkpoint.h5", "/etc/passwd"),
                                     with("4194304", "0"),
                                     with("4194304", "9223372036854775807"),
                                     with("4194304", "8192"),
                                     with("\"bytes\": ", "\"bytes\": 9"),
                                     with("xxh3_64", "crc32"),
                                     with("\"blocks\"", "\"block\""),
                                     good.substr(0, good.find("\"blocks\"")) + "\"blocks\": [12345]}",
                                     good.substr(0, good.find("\"blocks\"")) + "\"blocks\": [\"0123456789abcdeg\"]}",
                                     good.substr(0, good.find("\"blocks\"")) + "\"blocks\": [\"0123456789abcdef\"]}"};
  for (const std::string& text : bad) {
    on_root([&] { test::write_bytes(file, {text.begin(), text.end()}); });
    expect_error(ExitCode::data_error, "step_00000020", [&] { CheckpointReader::open(world, newest()); });
    EXPECT_EQ(find("auto")->info().state.step, 10) << text;
  }
  on_root([&] { fs::copy_file(scratch / "step_00000010/manifest.json", file, fs::copy_options::overwrite_existing); });
  expect_newest_refused("of step 10");
}

TEST_F(Damage, HalfWrittenOnesAreRefused) {
  on_root([&] { fs::remove(newest() / manifest_file_name); });
  expect_newest_refused("half-written: checkpoint.h5 without manifest.json");
  on_root([&] {
    fs::remove_all(newest());
    fs::create_directory(newest());
  });
  expect_newest_refused("there is no checkpoint in it");
  on_root([&] { fs::rename(newest(), scratch / "step_00000020.partial"); });
  EXPECT_EQ(find("auto")->info().state.step, 10);
  save(30);
  EXPECT_FALSE(fs::exists(scratch / "step_00000020.partial"));
}

TEST_F(Damage, WhenNoneIsGoodNothingIsStartedOver) {
  on_root([&] {
    fs::resize_file(newest() / checkpoint_file_name, 100);
    fs::remove(scratch / "step_00000010/manifest.json");
  });
  expect_error(ExitCode::data_error, "'none': start from scratch", [&] { find("auto"); });
  expect_error(ExitCode::data_error, "step_00000010", [&] { find("auto"); });
  on_root([&] {
    fs::remove_all(scratch / "step_00000010");
    fs::rename(newest(), scratch / "step_00000020.partial");
  });
  EXPECT_FALSE(find("auto").has_value());  // killed while writing the first
}

TEST_F(Damage, WrongContentsAreRefused) {
  const char* norm = "/parameters/model/norm/weight";
  const auto replace_norm = [&](hid_t file, hid_t type, std::vector<hsize_t> shape) {
    H5Ldelete(file, norm, H5P_DEFAULT);
    const hdf5::Dataspace space(H5Screate_simple(int(shape.size()), shape.data(), nullptr));
    hdf5::Dataset(H5Dcreate2(file, norm, type, space.id(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  };
  edit_newest([&](hid_t file) { replace_norm(file, H5T_IEEE_F32LE, {9}); });
  expect_read_refused("(8)");
  edit_newest([&](hid_t file) { replace_norm(file, H5T_IEEE_F32LE, {8, 1}); });
  expect_read_refused("(8, 1)");
  edit_newest([&](hid_t file) { replace_norm(file, H5T_STD_I32LE, {8}); });
  expect_read_refused("wrong type");
  edit_newest([&](hid_t file) { H5Ldelete(file, norm, H5P_DEFAULT); });
  expect_read_refused("parameters/model/norm/weight");
  edit_newest([&](hid_t file) { H5Lcreate_external("other.h5", "/x", file, norm, H5P_DEFAULT, H5P_DEFAULT); });
  expect_read_refused("is a link");
}

TEST_F(Damage, WrongMetadataIsRefused) {
  edit_newest([](hid_t file) {
    const hdf5::Group group(H5Gopen2(file, "parameters", H5P_DEFAULT));
    H5Adelete(group.id(), "hidden_size");
    hdf5::write_integer(group.id(), "hidden_size", -8);
  });
  expect_newest_refused("hidden_size");
  save(20);
  edit_newest([](hid_t file) {
    const hdf5::Group group(H5Gopen2(file, "state", H5P_DEFAULT));
    H5Adelete(group.id(), "adam_step");
  });
  expect_newest_refused("adam_step");
  save(20);
  edit_newest([](hid_t file) { H5Ldelete(file, "state", H5P_DEFAULT); });
  expect_newest_refused("'state' is missing");
  save(20);
  edit_newest([](hid_t file) {
    H5Adelete(file, "version");
    hdf5::write_integer(file, "version", 2);
  });
  expect_newest_refused("another format version");
  save(20);
  edit_newest([](hid_t file) { H5Adelete(file, "version"); });
  expect_newest_refused("another format version");
}

// What every writer of the format writes is never guessed.
TEST_F(Damage, AbsentMetadataIsRefused) {
  edit_newest([](hid_t file) {
    const hdf5::Group group(H5Gopen2(file, "optimizer", H5P_DEFAULT));
    H5Adelete(group.id(), "name");
  });
  expect_newest_refused("the attribute 'name' is missing");
  save(20);
  edit_newest([](hid_t file) { H5Ldelete(file, "deck", H5P_DEFAULT); });
  expect_newest_refused("deck");
  save(20);
  edit_newest([](hid_t file) { hdf5::Group(H5Gcreate2(file, "compression", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)); });
  expect_newest_refused("the attribute 'layout' is missing");
  save(20);
  edit_newest([](hid_t file) {
    const hdf5::Group group(H5Gopen2(file, "parameters", H5P_DEFAULT));
    hdf5::write_integer(group.id(), "num_experts", 0);
  });
  expect_newest_refused("num_experts");
}

TEST_F(Damage, AnotherVersionIsToldWithWhatToDo) {
  on_root([&] {
    const fs::path file = newest() / manifest_file_name;
    const auto bytes = test::read_bytes(file);
    std::string text(bytes.begin(), bytes.end());
    const std::string version = "\"version\": 1";
    text.replace(text.find(version), version.size(), "\"version\": 2");
    test::write_bytes(file, {text.begin(), text.end()});
  });
  for (const char* words :
       {"another format version", "expected: 1", "found:    2", "manifest.json", "the release that wrote it"}) {
    expect_newest_refused(words);
  }
}

}  // namespace
}  // namespace nanotron::io
