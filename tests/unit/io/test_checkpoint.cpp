// ranks: 1 2 4
#include <gtest/gtest.h>

#include <sys/resource.h>
#include <csignal>

#include "nanotron/io/checkpoint_reader.hpp"
#include "nanotron/io/checkpoint_writer.hpp"
#include "nanotron/io/hdf5.hpp"
#include "nanotron/io/manifest.hpp"
#include "support/world.hpp"
#include "unit/data/scratch.hpp"
#include "unit/io/fake_model.hpp"

namespace nanotron::io {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::FakeState;
using test::Scratch;

int rank_of(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return rank;
}

int size_of_comm(MPI_Comm comm) {
  int size = 1;
  MPI_Comm_size(comm, &size);
  return size;
}

class Checkpoint : public ::testing::Test {
 protected:
  MPI_Comm world = test::world();
  int rank = rank_of(test::world()), size = size_of_comm(test::world());
  Log log{false};
  Scratch scratch{test::world()};

  template <class M>
  void save(std::int64_t step, int salt) {
    CheckpointWriter writer(world, scratch.path(), 0, log);
    save<M>(writer, step, salt);
  }
  template <class M>
  void save(CheckpointWriter& writer, std::int64_t step, int salt) {
    FakeState<M> state(rank, size);
    state.fill(salt);
    writer.write(state.contents(step));
    MPI_Barrier(world);  // until rank 0 has removed old ones
  }

  /// Reads on the first `ranks` ranks, cut over as many, and counts wrong elements.
  template <class M>
  index_t wrong_on(int ranks, std::int64_t step, int salt) {
    MPI_Comm some;
    MPI_Comm_split(world, rank < ranks ? 0 : MPI_UNDEFINED, rank, &some);
    index_t wrong = 0;
    if (some != MPI_COMM_NULL) {
      FakeState<M> state(rank, ranks);
      state.want_replicas();
      {
        auto reader = CheckpointReader::open(some, step_folder(scratch.path(), step));
        reader.read(state.parameters.tensors(), state.exp_avg.tensors(), state.exp_avg_sq.tensors(),
                    scalar_type_of<M>);
      }
      wrong = state.differences(salt);
      MPI_Comm_free(&some);
    }
    MPI_Barrier(world);
    return wrong;
  }
};

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
  return open_parallel(world, path, Access::write);
}

std::vector<Slab> slabs_of(const hdf5::File& file, const std::vector<StateTensor>& tensors) {
  std::vector<Slab> slabs;
  for (const StateTensor& t : tensors)
    slabs.push_back({hdf5::open_dataset(file.id(), t.name, ""), &t, t.name});
  return slabs;
}

TEST_F(Checkpoint, LargePartsGoInPieces) {
  for (const std::int64_t piece : {30, 200, 1 << 20}) {
    const int salt = static_cast<int>(piece % 1000);
    test::FakeModel<double> model(rank, size), back(rank, size);
    model.fill(salt);
    const auto file = make_file(world, scratch / "pieces.h5", model.tensors());
    write_slabs(world, slabs_of(file, model.tensors()), ScalarType::fp64, piece);
    compare_slabs(world, slabs_of(file, model.tensors()), ScalarType::fp64, piece);
    read_slabs(world, slabs_of(file, back.tensors()), ScalarType::fp64, piece);
    EXPECT_EQ(back.differences(salt), 0) << piece;
  }
}

TEST_F(Checkpoint, PaddedRowsInMemory) {
  std::vector<double> memory(80, -1.0), back(80, -1.0);  // 2 layers of 4 rows of 10, 6 used
  for (index_t i = 0; i < 48; ++i)
    memory[std::size_t(i / 24 * 40 + i % 24 / 6 * 10 + i % 6)] = double(i + 100 * rank);
  StateTensor t{"padded",  {2, 4 * size, 6}, {0, 4 * rank, 0},
                {2, 4, 6}, memory.data(),    {40, 10, 1}};
  const auto file = make_file(world, scratch / "padded.h5", {t});
  const std::vector<StateTensor> written{t};
  write_slabs(world, slabs_of(file, written), ScalarType::fp64);
  compare_slabs(world, slabs_of(file, written), ScalarType::fp64);
  t.data = back.data();
  const std::vector<StateTensor> wanted{t};
  read_slabs(world, slabs_of(file, wanted), ScalarType::fp64);
  EXPECT_EQ(back, memory);
  if (rank == size - 1) back[0] += 1.0;
  expect_error(ExitCode::system_error, "padded",
               [&] { compare_slabs(world, slabs_of(file, wanted), ScalarType::fp64); });
}

/// What the process may write ends at `bytes` of a file: as a full disk, but without filling one.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit small = before_;
    small.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &small);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(Checkpoint, AFailedTransferIsAnError) {
  if (size > 1) GTEST_SKIP() << "collective writes of Open MPI 4.1 can hang after a failure";
  test::FakeModel<double> model(rank, size, 8);
  auto file = make_file(world, scratch / "limited.h5", model.tensors());
  MPI_Barrier(world);
  {
    const FileSizeLimit limit(4096);
    expect_error(ExitCode::system_error, "error", [&] {
      write_slabs(world, slabs_of(file, model.tensors()), ScalarType::fp64);
      compare_slabs(world, slabs_of(file, model.tensors()), ScalarType::fp64);
    });
  }
  MPI_Barrier(world);
  EXPECT_NO_THROW(file.close(ExitCode::system_error, "closing"));
}

TEST_F(Checkpoint, KeepsTheLastOnes) {
  CheckpointWriter writer(world, scratch.path(), 2, log);
  writer.continue_from(-1);
  for (const std::int64_t step : {10, 20, 30, 40}) save<float>(writer, step, 1);
  EXPECT_FALSE(fs::exists(scratch / "step_00000010"));
  EXPECT_FALSE(fs::exists(scratch / "step_00000020"));
  EXPECT_TRUE(fs::exists(scratch / "step_00000030/manifest.json"));
  EXPECT_EQ(fs::read_symlink(scratch / "latest"), "step_00000040");
}

TEST_F(Checkpoint, ADamagedOneNeverCountsAmongTheLastOnes) {
  save<float>(5, 1);
  save<float>(10, 1);
  if (rank == 0) fs::resize_file(scratch / "step_00000010/checkpoint.h5", 1000);
  MPI_Barrier(world);
  CheckpointWriter writer(world, scratch.path(), 2, log);
  writer.continue_from(5);
  save<float>(writer, 12, 2);
  EXPECT_TRUE(fs::exists(scratch / "step_00000005/manifest.json"));
  EXPECT_TRUE(fs::exists(scratch / "step_00000012/manifest.json"));
  EXPECT_FALSE(fs::exists(scratch / "step_00000010"));
}

TEST_F(Checkpoint, OfAnotherHistoryAreSetAside) {
  const fs::path aside = scratch.path().string() + ".superseded-1";
  for (const std::int64_t step : {10, 20, 30}) save<float>(step, 1);
  CheckpointWriter writer(world, scratch.path(), 2, log);
  writer.continue_from(10);
  MPI_Barrier(world);
  EXPECT_TRUE(fs::exists(scratch / "step_00000010/manifest.json"));
  EXPECT_FALSE(fs::exists(scratch / "step_00000030"));
  EXPECT_TRUE(fs::exists(aside / "step_00000020/manifest.json"));
  EXPECT_TRUE(fs::exists(aside / "step_00000030/manifest.json"));
  MPI_Barrier(world);
  if (rank == 0) fs::remove_all(aside);
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
  contents.exp_avg = contents.exp_avg_sq = {};
  CheckpointWriter(world, scratch.path(), 0, log).write(contents);
  auto reader = CheckpointReader::open(world, scratch / "step_00000003");
  EXPECT_FALSE(reader.info().has_optimizer);
  reader.read(back.parameters.tensors(), back.exp_avg.tensors(), back.exp_avg_sq.tensors(),
              ScalarType::fp32);
  EXPECT_EQ(back.parameters.differences(4), 0);
  for (const float value : back.exp_avg.memory()) ASSERT_EQ(value, -1.0f);
}

TEST_F(Checkpoint, OfTheToolsIsRead) {
  for (const char* name : {"llama", "qwen2", "qwen3"}) {
    const auto folder = fs::path(NANOTRON_TEST_DIR) / "golden" / name / "step_00000000";
    auto reader = CheckpointReader::open(world, folder);
    EXPECT_FALSE(reader.info().has_optimizer);
    EXPECT_EQ(reader.info().model.vocab_size, 131);
    std::vector<float> norm(32);
    const StateTensor t{"model/norm/weight", {32}, {0}, {32}, norm.data(), {1}};
    reader.read(std::vector<StateTensor>{t}, {}, {}, ScalarType::fp32);
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
