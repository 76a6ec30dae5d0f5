// ranks: 2 4
// Copies on imitated hosts: lost hosts, damaged and stale copies, full disks, other numbers of ranks.

#include "nanotron/io/copies/neighbour_copies.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <fstream>

#include "nanotron/base/error.hpp"
#include "support/file_size_limit.hpp"
#include "unit/io/checkpoint_fixture.hpp"

namespace nanotron::io {
namespace {

class Neighbours : public Checkpoint {
 protected:
  static std::vector<std::string> two_hosts(int ranks) {
    std::vector<std::string> hosts;
    for (int rank = 0; rank < ranks; ++rank) hosts.push_back(2 * rank < ranks ? "a" : "b");
    return hosts;
  }
  /// Two hosts, of which the first has the lower half of the ranks.
  static CopyLocation place(const fs::path& folder, int ranks, const std::string& run) {
    return {.directory = (folder / "%h").string(), .run = run, .hosts = two_hosts(ranks), .checkpoints = folder};
  }
  NeighbourCopies copies(const std::string& run = "1111111111111111") {
    return NeighbourCopies(world, place(scratch.path(), size, run), log);
  }
  bool write(NeighbourCopies& to, std::int64_t step, int salt) {
    FakeState<float> state(rank, size, scale);
    state.fill(salt);
    return to.write(state.contents(step));
  }
  /// Wrong elements of the newest copies, -1 where there are none.
  index_t wrong(NeighbourCopies& from, std::int64_t step, int salt) {
    auto reader = from.newest(0);
    if (!reader) return -1;
    EXPECT_TRUE(reader->is_of_copies());
    EXPECT_EQ(reader->info().state.step, step);
    FakeState<float> state(rank, size, scale);
    state.want_replicas();
    reader->read(state.parameters.tensors(), state.moments(), ScalarType::fp32);
    return state.differences(salt);
  }
  std::vector<fs::path> files_of(const std::string& host, const std::string& with) {
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(scratch.path() / host))
      if (entry.is_regular_file() && entry.path().filename().string().find(with) != std::string::npos)
        found.push_back(entry.path());
    return found;
  }
  fs::path piece_of(const std::string& host, int step, int of_rank, const std::string& kind) {
    for (const fs::path& file : files_of(host, fmt::format("rank_{}_of_{}{}", of_rank, size, kind)))
      if (file.filename().string().starts_with(fmt::format("step_{:08}", step))) return file;
    ADD_FAILURE() << "no piece";
    return {};
  }
  template <class F>
  void on_root(const F& work) {
    MPI_Barrier(world);
    if (rank == 0) work();
    MPI_Barrier(world);
  }
  // The first byte that is not 0.
  static void flip(const fs::path& file) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    for (char byte = 0; stream.get(byte);) {
      if (byte == 0) continue;
      stream.seekp(-1, std::ios::cur);
      stream.put(static_cast<char>(byte ^ 1));
      return;
    }
  }

  static constexpr index_t scale = 32;  // several blocks
};

TEST_F(Neighbours, AreReadAfterEitherHostIsLost) {
  for (const char* lost : {"a", "b", "none"}) {
    SCOPED_TRACE(lost);
    {
      NeighbourCopies to = copies();
      EXPECT_TRUE(write(to, 10, 1));
      EXPECT_TRUE(write(to, 20, 2));
      EXPECT_GT(to.bytes_held(), 0);
    }
    on_root([&] { fs::remove_all(scratch.path() / lost); });
    NeighbourCopies from = copies();
    EXPECT_EQ(wrong(from, 20, 2), 0);
    from.remove_all();
    MPI_Barrier(world);
    EXPECT_EQ(wrong(from, 20, 2), -1);
  }
}

TEST_F(Neighbours, OfBothHostsLostAreNotRead) {
  {
    NeighbourCopies to = copies();
    write(to, 10, 1);
  }
  on_root([&] {
    fs::remove_all(scratch.path() / "a");
    fs::remove_all(scratch.path() / "b");
  });
  NeighbourCopies from = copies();
  EXPECT_FALSE(from.newest(0));
}

TEST_F(Neighbours, KeepTwoGenerations) {
  NeighbourCopies to = copies();
  for (const int step : {10, 20, 30}) write(to, step, step);
  MPI_Barrier(world);
  EXPECT_EQ(files_of("a", "step_00000010").size(), 0u);  // then blocks and tables of all ranks
  EXPECT_EQ(files_of("a", "step_00000020").size(), 2 * static_cast<std::size_t>(size));
  EXPECT_EQ(files_of("b", "step_00000030").size(), 2 * static_cast<std::size_t>(size));
  MPI_Barrier(world);
  EXPECT_EQ(wrong(to, 30, 30), 0);
  auto reader = to.newest(0);
  to.keep_only(&*reader);
  MPI_Barrier(world);
  EXPECT_EQ(files_of("a", "step_00000020").size(), 0u);
  EXPECT_FALSE(to.newest(31));
  MPI_Barrier(world);
  write(to, 40, 40);
  EXPECT_EQ(wrong(to, 40, 40), 0);
}

// A host that comes back with copies of steps that the run has left behind.
TEST_F(Neighbours, OfAnAbandonedBranchAreNotRead) {
  NeighbourCopies to = copies();
  write(to, 40, 1);
  MPI_Barrier(world);
  on_root([&] {
    fs::create_directory(scratch / "kept");
    for (const char* host : {"a", "b"}) fs::copy(scratch / host, scratch / "kept" / host, fs::copy_options::recursive);
  });
  to.keep_only(nullptr);  // it continued from a checkpoint
  on_root([&] {
    for (const char* host : {"a", "b"}) fs::copy(scratch / "kept" / host, scratch / host, fs::copy_options::recursive);
  });
  EXPECT_TRUE(to.newest(0));  // nothing of the other branch is lost before the first copy of this one
  write(to, 20, 2);
  EXPECT_EQ(wrong(to, 20, 2), 0);
  EXPECT_TRUE(copies().newest(0));
  const std::string branch = run_identity(world, scratch.path(), Identity::of_directory);
  EXPECT_NE(branch, "1111111111111111");
  copies(branch).remove_those_of({"1111111111111111"});
  MPI_Barrier(world);
  EXPECT_FALSE(copies().newest(0));
  EXPECT_TRUE(copies(branch).newest(0));
}

TEST_F(Neighbours, DamagedOnesAreTakenFromTheOtherHost) {
  NeighbourCopies to = copies();
  write(to, 10, 1);
  write(to, 20, 2);
  on_root([&] {
    flip(piece_of("a", 20, 0, ".blocks"));
    fs::resize_file(piece_of("b", 20, 1, ".table"), 100);
    if (size > 2) fs::resize_file(piece_of("a", 20, 2, ".blocks"), 100);
  });
  EXPECT_EQ(wrong(to, 20, 2), 0);
}

TEST_F(Neighbours, DamagedOnBothHostsLeaveTheOlderStep) {
  NeighbourCopies to = copies();
  write(to, 10, 1);
  write(to, 20, 2);
  on_root([&] {
    flip(piece_of("a", 20, 0, ".blocks"));
    flip(piece_of("b", 20, 0, ".table"));
  });
  EXPECT_EQ(wrong(to, 10, 1), 0);
}

TEST_F(Neighbours, OfAnotherRunAreNotRead) {
  {
    NeighbourCopies other = copies("2222222222222222");
    write(other, 90, 9);
  }
  NeighbourCopies mine = copies();
  EXPECT_FALSE(mine.newest(0));
  write(mine, 10, 1);
  on_root([&] {  // even under this run's name
    for (const char* host : {"a", "b"})
      for (const fs::path& file : files_of(host, "step_00000090"))
        fs::copy_file(file, file.parent_path().parent_path() / "1111111111111111" / file.filename());
  });
  EXPECT_EQ(wrong(mine, 10, 1), 0);
}

TEST_F(Neighbours, AreReadByFewerRanks) {
  {
    NeighbourCopies to = copies();
    write(to, 10, 1);
  }
  on_root([&] { fs::remove_all(scratch.path() / "a"); });
  MPI_Comm some;
  MPI_Comm_split(world, rank < size - 1 ? 0 : MPI_UNDEFINED, rank, &some);
  if (some != MPI_COMM_NULL) {
    CopyLocation fewer = place(scratch.path(), size - 1, "1111111111111111");
    std::vector<std::string> hosts = two_hosts(size - 1);
    hosts.back() = "b";
    fewer.hosts = hosts;
    NeighbourCopies from(some, fewer, log);
    auto reader = from.newest(0);
    ASSERT_TRUE(reader);
    FakeState<float> state(rank, size - 1, scale);
    state.want_replicas();
    reader->read(state.parameters.tensors(), state.moments(), ScalarType::fp32);
    EXPECT_EQ(state.differences(1), 0);
  }
  MPI_Barrier(world);
}

TEST_F(Neighbours, OfAnotherTypeAreRefused) {
  NeighbourCopies to = copies();
  write(to, 10, 1);
  auto reader = to.newest(0);
  ASSERT_TRUE(reader);
  FakeState<double> state(rank, size, scale);
  EXPECT_THROW(reader->read(state.parameters.tensors(), state.moments(), ScalarType::fp64), Error);
  for (const double value : state.parameters.memory()) ASSERT_EQ(value, -1.0);
}

TEST_F(Neighbours, WithoutSpaceOnOneHostLeaveTheOlderOnes) {
  NeighbourCopies to = copies();
  EXPECT_TRUE(write(to, 10, 1));
  {
    std::optional<test::FileSizeLimit> limit;
    if (rank == size - 1) limit.emplace(10000);
    EXPECT_FALSE(write(to, 20, 2));
  }
  MPI_Barrier(world);
  EXPECT_EQ(files_of("a", "step_00000020").size(), 0u);
  EXPECT_EQ(files_of("b", "step_00000020").size(), 0u);
  EXPECT_EQ(wrong(to, 10, 1), 0);
  EXPECT_TRUE(write(to, 30, 3));
  EXPECT_EQ(wrong(to, 30, 3), 0);
}

TEST_F(Neighbours, AreOfTheUserAlone) {
  NeighbourCopies to = copies();
  write(to, 10, 1);
  MPI_Barrier(world);
  struct stat status {};
  for (const fs::path& file : files_of("a", "step_")) {
    ASSERT_EQ(::stat(file.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0600u) << file;
    ASSERT_EQ(::stat(file.parent_path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0700u);
  }
  MPI_Barrier(world);
  to.remove_all();
  on_root([&] {
    EXPECT_TRUE(fs::is_empty(scratch.path() / "a"));
    fs::create_directories(scratch.path() / "elsewhere");
    fs::create_directory_symlink(scratch.path() / "elsewhere",
                                 scratch.path() / "a" / fmt::format("nanotron_hpc-{}", ::geteuid()));
  });
  EXPECT_FALSE(write(to, 20, 2));
  EXPECT_TRUE(fs::is_empty(scratch.path() / "elsewhere"));
}

TEST_F(Neighbours, ThatShareAFolderAreRefused) {
  CopyLocation shared = place(scratch.path(), size, "1111111111111111");
  shared.directory = (scratch.path() / "shared").string();
  EXPECT_THROW(NeighbourCopies(world, shared, log), Error);
}

TEST_F(Neighbours, NeedAnotherHost) {
  CopyLocation alone = place(scratch.path(), size, "1111111111111111");
  alone.hosts = std::vector<std::string>(static_cast<std::size_t>(size), "a");
  NeighbourCopies to(world, alone, log);
  EXPECT_FALSE(write(to, 10, 1));
}

TEST_F(Neighbours, IdentityIsOfTheDirectory) {
  const std::string first = run_identity(world, scratch.path(), Identity::of_directory);
  EXPECT_EQ(first.size(), 16u);
  EXPECT_EQ(run_identity(world, scratch.path(), Identity::of_directory), first);
  const std::string second = run_identity(world, scratch.path(), Identity::fresh);
  EXPECT_NE(second, first);
  EXPECT_EQ(run_identity(world, scratch.path(), Identity::of_directory), second);
}

TEST_F(Neighbours, IdentityFollowsNoLinkAndWaitsForNoPipe) {
  const fs::path other = scratch.path() / "other", file = scratch.path() / "run.id";
  on_root([&] {
    std::ofstream(other) << "0123456789abcdef\n";
    for (const char* beside : {"run.id.new", "run.id.tmp"}) fs::create_symlink(other, scratch.path() / beside);
    ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  });
  const std::string first = run_identity(world, scratch.path(), Identity::of_directory);
  EXPECT_EQ(run_identity(world, scratch.path(), Identity::of_directory), first);
  on_root([&] {
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(file)));
    fs::remove(file);
    fs::create_symlink(other, file);
  });
  const std::string second = run_identity(world, scratch.path(), Identity::of_directory);
  EXPECT_NE(second, "0123456789abcdef");
  on_root([&] {
    std::string text;
    std::ifstream(other) >> text;
    EXPECT_EQ(text, "0123456789abcdef");
    EXPECT_EQ(fs::file_size(other), 17u);
  });
}

}  // namespace
}  // namespace nanotron::io
