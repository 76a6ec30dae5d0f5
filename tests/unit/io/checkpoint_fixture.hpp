#pragma once

// Checkpoints of a made-up model in a scratch folder, written and read by all ranks or by fewer.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "nanotron/io/checkpoint/checkpoint_reader.hpp"
#include "nanotron/io/checkpoint/checkpoint_writer.hpp"
#include "support/world.hpp"
#include "unit/data/scratch.hpp"
#include "unit/io/fake_model.hpp"

namespace nanotron::io {

namespace fs = std::filesystem;
using test::FakeState;
using test::Scratch;

inline int rank_of(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return rank;
}

inline int size_of_comm(MPI_Comm comm) {
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

  template <class M>
  void save(const fs::path& directory, std::int64_t step) {
    CheckpointWriter writer(world, directory, 0, log);
    save<M>(writer, step, 1);
  }
  /// The whole checkpoints of a directory, oldest first. Collective.
  std::vector<std::string> folders(const fs::path& directory) {
    MPI_Barrier(world);  // until rank 0 has moved and removed
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory))
      if (!entry.is_symlink() && fs::exists(entry.path() / manifest_file_name))
        names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    MPI_Barrier(world);
    return names;
  }
  std::vector<std::string> folders() { return folders(scratch.path()); }

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
        reader.read(state.parameters.tensors(), state.moments(), scalar_type_of<M>);
      }
      wrong = state.differences(salt);
      MPI_Comm_free(&some);
    }
    MPI_Barrier(world);
    return wrong;
  }
};

}  // namespace nanotron::io
