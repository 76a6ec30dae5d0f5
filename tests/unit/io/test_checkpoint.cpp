// ranks: 1 2 4
#include <gtest/gtest.h>

#include "nanotron/io/checkpoint_reader.hpp"
#include "nanotron/io/checkpoint_writer.hpp"
#include "nanotron/io/manifest.hpp"
#include "nanotron/io/parallel_hdf5.hpp"
#include "nanotron/tensor/tensor.hpp"
#include "support/test_folder.hpp"
#include "support/world.hpp"
#include "unit/data/scratch.hpp"
#include "unit/io/checkpoint_fixture.hpp"
#include "unit/io/file_size_limit.hpp"

namespace nanotron::io {
namespace {

using test::expect_error;
using test::FileSizeLimit;

TEST_F(Checkpoint, IsReadBackOnEveryGrid) {
  save<float>(7, 40);
  save<double>(8, 50);
  for (int ranks = 1; ranks <= size; ++ranks) {
    EXPECT_EQ(wrong_on<float>(ranks, 7, 40), 0) << ranks << " ranks";
    EXPECT_EQ(wrong_on<double>(ranks, 8, 50), 0) << ranks << " ranks";
    EXPECT_EQ(wrong_on<double>(ranks, 7, 40), 0) << ranks << " ranks, float to double";
    EXPECT_EQ(wrong_on<float>(ranks, 8, 50), 0) << ranks << " ranks, double to float";
  }
}

TEST_F(Checkpoint, KeepsTheCountersModelAndTexts) {
  save<float>(100, 1);
  const auto reader = CheckpointReader::find(world, scratch.path(), "auto", log);
  ASSERT_TRUE(reader.has_value());
  const CheckpointInfo& info = reader->info();
  EXPECT_EQ(reader->folder(), scratch / "step_00000100");
  EXPECT_EQ(info.state.step, 100);
  EXPECT_EQ(info.state.tokens_seen, 10000);
  EXPECT_EQ(info.state.sample_cursor, 800);
  EXPECT_EQ(info.state.seed, 1234);
  EXPECT_EQ(info.state.adam_step, 100);
  EXPECT_EQ(info.master, ScalarType::fp32);
  EXPECT_TRUE(info.has_optimizer);
  EXPECT_EQ(info.deck, "&run\n/\n");
  EXPECT_NO_THROW(reader->require_model(test::fake_config()));
  auto other = test::fake_config();
  other.hidden_size = 9;
  other.qk_norm = true;
  expect_error(ExitCode::deck_error, "model%hidden_size: the deck says 9, the checkpoint 8",
               [&] { reader->require_model(other); });
  expect_error(ExitCode::deck_error, "qk_norm", [&] { reader->require_model(other); });
}

TEST_F(Checkpoint, TheFileDoesNotShowTheGrid) {
  save<float>(5, 3);
  MPI_Comm alone;
  MPI_Comm_split(world, rank, 0, &alone);
  if (rank == 0) {
    FakeState<float> state(0, 1);
    state.fill(3);
    CheckpointWriter(alone, scratch / "alone", 0, log).write(state.contents(5));
    EXPECT_EQ(test::read_bytes(scratch / "alone/step_00000005/checkpoint.h5"),
              test::read_bytes(scratch / "step_00000005/checkpoint.h5"));
    EXPECT_EQ(test::read_bytes(scratch / "alone/step_00000005/manifest.json"),
              test::read_bytes(scratch / "step_00000005/manifest.json"));
  }
  MPI_Comm_free(&alone);
  MPI_Barrier(world);
}

/// A file with these datasets, open on all ranks for writing.
hdf5::File make_file(MPI_Comm world, const fs::path& path,
                     const std::vector<StateTensor>& tensors) {
  if (rank_of(world) == 0) {
    const hdf5::File file = create_file(path);
    for (const StateTensor& t : tensors) {
      const std::vector<hsize_t> shape(t.global_shape.begin(), t.global_shape.end());
      const hdf5::Dataspace space(H5Screate_simple(int(shape.size()), shape.data(), nullptr));
      const hdf5::PropertyList links(H5Pcreate(H5P_LINK_CREATE)),
          own(H5Pcreate(H5P_DATASET_CREATE));
      H5Pset_create_intermediate_group(links.id(), 1);
      H5Pset_alloc_time(own.id(), H5D_ALLOC_TIME_EARLY);
      hdf5::Dataset(H5Dcreate2(file.id(), t.name.c_str(), H5T_NATIVE_DOUBLE, space.id(), links.id(),
                               own.id(), H5P_DEFAULT));
    }
  }
  MPI_Barrier(world);
  return open_to_write(world, path);
}

std::vector<Slab> slabs_of(const hdf5::File& file, const std::vector<StateTensor>& tensors,
                           ScalarType type = ScalarType::fp64) {
  std::vector<Slab> slabs;
  for (const StateTensor& t : tensors) slabs.push_back({hdf5::open_dataset(file.id(), t.name, ""), &t, type, t.name});
  return slabs;
}

TEST_F(Checkpoint, LargePartsGoInPieces) {
  for (const std::int64_t piece : {30, 200, 1 << 20}) {
    const int salt = static_cast<int>(piece % 1000);
    test::FakeModel<double> model(rank, size), back(rank, size);
    model.fill(salt);
    const auto file = make_file(world, scratch / "pieces.h5", model.tensors());
    write_slabs(world, slabs_of(file, model.tensors()), piece);
    compare_slabs(world, slabs_of(file, model.tensors()), piece);
    read_slabs(world, slabs_of(file, back.tensors()), piece);
    EXPECT_EQ(back.differences(salt), 0) << piece;
  }
}

TEST(Pieces, CoverAPartOnceAndStaySmall) {
  for (const std::vector<index_t>& extent : {std::vector<index_t>{3, 7, 5}, {1, 1, 9}, {6, 5}, {11}, {4, 0, 3}}) {
    StateTensor t;
    t.parts.emplace_back();
    t.parts[0].extent = extent;
    const bool layered = extent.size() == 3;
    const index_t row = extent.size() == 1 ? 1 : extent.back(), rows = layered ? extent[1] : 1;
    for (const std::int64_t elements : {1, 5, 12, 36, 70, 1000}) {
      index_t covered = 0;
      for (const std::vector<Piece>& transfer : transfers_of(t, ScalarType::fp64, 8 * elements)) {
        ASSERT_EQ(transfer.size(), 1u);
        const Piece& piece = transfer.front();
        const index_t size = piece.outer.size() * piece.inner.size() * row;
        EXPECT_LE(size, std::max<index_t>(elements, row));
        EXPECT_TRUE(piece.outer.size() == 1 || piece.inner.size() == rows);
        covered += size;
      }
      EXPECT_EQ(covered, std::accumulate(extent.begin(), extent.end(), index_t{1}, std::multiplies<>()));
    }
  }
}

using DeviceMemory = Kokkos::View<double*, MemorySpace>;

DeviceMemory on_device(const std::vector<double>& values) {
  const DeviceMemory memory("values", values.size());
  const auto host = Kokkos::create_mirror_view(memory);
  std::copy(values.begin(), values.end(), host.data());
  Kokkos::deep_copy(memory, host);
  return memory;
}

std::vector<double> values_of(const DeviceMemory& memory) {
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), memory);
  return {host.data(), host.data() + host.size()};
}

TEST_F(Checkpoint, PaddedRowsOfDeviceMemory) {
  std::vector<double> values(80, -1.0);  // 2 layers of 4 rows of 10, 6 used
  for (index_t i = 0; i < 48; ++i) values[std::size_t(i / 24 * 40 + i % 24 / 6 * 10 + i % 6)] = double(i + 100 * rank);
  const DeviceMemory memory = on_device(values), back = on_device(std::vector<double>(80, -1.0));
  StateTensor t{"padded", {2, 4 * size, 6}, {{{0, 4 * rank, 0}, {2, 4, 6}, memory.data(), {40, 10, 1}}}};
  const auto file = make_file(world, scratch / "padded.h5", {t});
  const std::vector<StateTensor> written{t};
  write_slabs(world, slabs_of(file, written), 100);  // two rows at a time
  compare_slabs(world, slabs_of(file, written), 60);
  t.parts[0].data = back.data();
  const std::vector<StateTensor> wanted{t};
  read_slabs(world, slabs_of(file, wanted), 150);
  EXPECT_EQ(values_of(back), values);
  if (rank == size - 1) values[0] += 1.0;
  const DeviceMemory wrong = on_device(values);
  t.parts[0].data = wrong.data();
  const std::vector<StateTensor> others{t};
  expect_error(ExitCode::system_error, "padded", [&] { compare_slabs(world, slabs_of(file, others)); });
}

// A rank has an interval of the row-major elements of each layer: the end of a row, whole rows, the beginning of one.
StateTensor flat_pieces(const std::vector<index_t>& shape, int rank, int size, std::vector<double>& memory) {
  const index_t columns = shape[2], elements = shape[1] * columns;
  const index_t begin = elements * rank / size, end = elements * (rank + 1) / size;
  memory.assign(static_cast<std::size_t>(shape[0] * (end - begin)), -1.0);
  StateTensor t{"pieces", shape, {}};
  double* data = memory.data();
  for (index_t layer = 0; layer < shape[0]; ++layer) {
    for (index_t i = begin; i < end;) {
      const index_t row = i / columns, column = i % columns;
      const bool whole = column == 0 && end - i >= columns;
      const index_t rows = whole ? (end - i) / columns : 1;
      const index_t count = whole ? columns : std::min(columns - column, end - i);
      t.parts.push_back({{layer, row, column}, {1, rows, count}, data, {rows * columns, columns, 1}});
      if (!whole) t.parts.back().stride = {count, count, 1};
      data += rows * count;
      i += rows * count;
    }
  }
  return t;
}

TEST_F(Checkpoint, SeveralPartsOfATensor) {
  const std::vector<index_t> shape{3, 11, 7};
  for (const std::int64_t limit : {60, 200, 1 << 20}) {
    std::vector<double> memory, back;
    const std::vector<StateTensor> written{flat_pieces(shape, rank, size, memory)};
    const index_t first = 77 * rank / size, count = 77 * (rank + 1) / size - first;
    for (index_t i = 0; i < 3 * count; ++i)
      memory[std::size_t(i)] = double(i / count * 77 + first + i % count);
    const auto file = make_file(world, scratch / "parts.h5", written);
    write_slabs(world, slabs_of(file, written), limit);
    compare_slabs(world, slabs_of(file, written), limit);
    const std::vector<StateTensor> wanted{flat_pieces(shape, rank, size, back)};
    read_slabs(world, slabs_of(file, wanted), limit);
    EXPECT_EQ(back, memory) << limit;
    std::vector<double> all(3 * 77);  // the logical tensor
    const StateTensor whole{"pieces", shape, {{{0, 0, 0}, shape, all.data(), {77, 7, 1}}}};
    const std::vector<StateTensor> wholes{whole};
    read_slabs(world, slabs_of(file, wholes));
    for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], double(i));
    back.back() += 1.0;
    expect_error(ExitCode::system_error, "pieces", [&] { compare_slabs(world, slabs_of(file, wanted), limit); });
  }
}

TEST_F(Checkpoint, AFailedTransferIsAnError) {
  if (size > 1) GTEST_SKIP() << "collective writes of Open MPI 4.1 can hang after a failure";
  test::FakeModel<double> model(rank, size, 8);
  auto file = make_file(world, scratch / "limited.h5", model.tensors());
  MPI_Barrier(world);
  {
    const FileSizeLimit limit(4096);
    expect_error(ExitCode::system_error, "error", [&] {
      write_slabs(world, slabs_of(file, model.tensors()));
      compare_slabs(world, slabs_of(file, model.tensors()));
    });
  }
  MPI_Barrier(world);
  EXPECT_NO_THROW(file.close(ExitCode::system_error, "closing"));
}

TEST_F(Checkpoint, KeepsTheLastProvenOnesAndTheNewest) {
  CheckpointWriter writer(world, scratch.path(), 2, log);
  writer.begin_anew();
  EXPECT_TRUE(writer.newest_known_good().empty());
  for (const std::int64_t step : {10, 20, 30, 40}) {
    save<float>(writer, step, 1);
    writer.mark_known_good();
    writer.mark_known_good();  // nothing new: no change
  }
  save<float>(writer, 50, 1);
  EXPECT_EQ(folders(), (std::vector<std::string>{"step_00000030", "step_00000040", "step_00000050"}));
  EXPECT_EQ(fs::read_symlink(scratch / "latest"), "step_00000050");
  EXPECT_EQ(writer.newest_known_good(), scratch / "step_00000040");
  save<float>(writer, 60, 1);  // no finite step since 40
  EXPECT_EQ(folders().size(), 4u);
  writer.mark_known_good();
  EXPECT_EQ(folders(), (std::vector<std::string>{"step_00000050", "step_00000060"}));
  EXPECT_EQ(writer.newest_known_good(), scratch / "step_00000060");
}

TEST_F(Checkpoint, TheOneResumedFromIsProvenByTheNextStep) {
  for (const std::int64_t step : {10, 20, 30}) save<float>(step, 1);
  if (rank == 0) fs::remove(scratch / "step_00000010/manifest.json");
  MPI_Barrier(world);
  CheckpointWriter writer(world, scratch.path(), 1, log);
  writer.continue_from(scratch / "step_00000030", 30);
  EXPECT_EQ(writer.newest_known_good(), scratch / "step_00000020");
  writer.mark_known_good();
  EXPECT_EQ(writer.newest_known_good(), scratch / "step_00000030");
  EXPECT_EQ(folders(), std::vector<std::string>{"step_00000030"});
}

TEST_F(Checkpoint, ADamagedOneNeverCountsAmongTheLastOnes) {
  save<float>(5, 1);
  save<float>(10, 1);
  if (rank == 0) fs::resize_file(scratch / "step_00000010/checkpoint.h5", 1000);
  MPI_Barrier(world);
  CheckpointWriter writer(world, scratch.path(), 2, log);
  writer.continue_from(scratch / "step_00000005", 5);
  save<float>(writer, 12, 2);
  writer.mark_known_good();
  EXPECT_EQ(folders(), (std::vector<std::string>{"step_00000005", "step_00000012"}));
}

TEST_F(Checkpoint, OfAnotherHistoryAreSetAside) {
  const fs::path directory = scratch / "checkpoints/";  // the slash is of no meaning
  const fs::path aside = scratch / "checkpoints.superseded-1";
  for (const std::int64_t step : {10, 20, 30}) save<float>(directory, step);
  CheckpointWriter writer(world, directory, 2, log);
  writer.continue_from(directory / "step_00000010", 10);
  EXPECT_EQ(folders(directory), std::vector<std::string>{"step_00000010"});
  EXPECT_EQ(folders(aside), (std::vector<std::string>{"step_00000020", "step_00000030"}));
}

TEST_F(Checkpoint, BranchingOffLosesNothing) {
  const fs::path here = scratch / "here", elsewhere = scratch / "elsewhere";
  for (const std::int64_t step : {4, 6, 50}) save<float>(here, step);
  save<float>(elsewhere, 20);
  CheckpointWriter writer(world, here, 1, log);
  writer.continue_from(elsewhere / "step_00000020", 20);
  EXPECT_EQ(folders(scratch / "here.superseded-1").size(), 3u);
  writer.mark_known_good();
  EXPECT_EQ(writer.newest_known_good(), elsewhere / "step_00000020");
  for (const std::int64_t step : {22, 24}) save<float>(writer, step, 1);
  writer.mark_known_good();
  EXPECT_EQ(folders(here), std::vector<std::string>{"step_00000024"});
  EXPECT_EQ(folders(elsewhere), std::vector<std::string>{"step_00000020"});
  CheckpointWriter(world, here, 1, log).begin_anew();
  EXPECT_EQ(folders(scratch / "here.superseded-2"), std::vector<std::string>{"step_00000024"});
}

TEST_F(Checkpoint, TheNameOfTheDirectoryMayBeAnyBytes) {
  const fs::path directory = scratch / "caf\xe9 1";
  save<float>(directory, 3);
  EXPECT_EQ(CheckpointReader::find(world, directory, "auto", log)->folder(), directory / "step_00000003");
  EXPECT_EQ(CheckpointReader::find(world, scratch.path(), directory.string(), log)->info().state.step, 3);
}

TEST_F(Checkpoint, ReplacesTheSameStep) {
  save<float>(10, 1);
  save<float>(10, 2);
  EXPECT_EQ(wrong_on<float>(size, 10, 2), 0);
  if (rank == 0) {
    for (const auto& entry : fs::directory_iterator(scratch.path()))
      EXPECT_EQ(entry.path().string().find("partial"), std::string::npos) << entry.path();
  }
}

TEST_F(Checkpoint, WithoutMomentsTheyAreLeftAlone) {
  FakeState<float> state(rank, size), back(rank, size);
  state.fill(4);
  auto contents = state.contents(3);
  contents.moments = {};
  CheckpointWriter(world, scratch.path(), 0, log).write(contents);
  auto reader = CheckpointReader::open(world, scratch / "step_00000003");
  EXPECT_FALSE(reader.info().has_optimizer);
  reader.read(back.parameters.tensors(), back.moments(), ScalarType::fp32);
  EXPECT_EQ(back.parameters.differences(4), 0);
  for (const float value : back.exp_avg.memory()) ASSERT_EQ(value, -1.0f);
}

TEST_F(Checkpoint, OfTheToolsIsRead) {
  for (const char* name : {"llama", "qwen2", "qwen3"}) {
    const auto folder = test::test_folder() / "golden" / name / "step_00000000";
    auto reader = CheckpointReader::open(world, folder);
    EXPECT_FALSE(reader.info().has_optimizer);
    EXPECT_EQ(reader.info().model.vocab_size, 131);
    std::vector<float> norm(32);
    const StateTensor t{"model/norm/weight", {32}, {{{0}, {32}, norm.data(), {1}}}};
    reader.read(std::vector<StateTensor>{t}, {}, ScalarType::fp32);
    EXPECT_NE(norm[31], 0.0f);
  }
}

TEST_F(Checkpoint, AFullDiskEndsAllRanksAndHarmsNothing) {
  save<float>(1, 6);
  FakeState<double> state(rank, size, 8);
  state.fill(1);
  MPI_Barrier(world);
  {
    const FileSizeLimit limit(128 << 10);
    expect_error(ExitCode::system_error, "step_00000002.partial",
                 [&] { CheckpointWriter(world, scratch.path(), 0, log).write(state.contents(2)); });
  }
  MPI_Barrier(world);
  EXPECT_FALSE(fs::exists(scratch / "step_00000002.partial"));
  EXPECT_FALSE(fs::exists(scratch / "step_00000002"));
  EXPECT_EQ(wrong_on<float>(1, 1, 6), 0);
  save<float>(2, 7);
  EXPECT_EQ(wrong_on<float>(1, 2, 7), 0);
}

TEST_F(Checkpoint, ADirectoryThatCannotBeMadeIsAnError) {
  if (rank == 0) test::write_bytes(scratch / "file", {'x'});
  MPI_Barrier(world);
  FakeState<float> state(rank, size);
  expect_error(ExitCode::system_error, "Not a directory", [&] {
    CheckpointWriter(world, scratch / "file/checkpoints", 0, log).write(state.contents(2));
  });
}

}  // namespace
}  // namespace nanotron::io
