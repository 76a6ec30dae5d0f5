// ranks: 1 2
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "nanotron/base/process.hpp"
#include "nanotron/base/provenance.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

std::string value_of(const Provenance& rows, const std::string& key) {
  for (const auto& [name, value] : rows) {
    if (name == key) return value;
  }
  return "(missing)";
}

TEST(Provenance, BuildNamesItsLibraries) {
  const Provenance rows = build_provenance();
  for (const char* key : {"program", "git_hash", "git_dirty", "compiler", "compile_flags", "mpi", "hdf5", "kokkos",
                          "blas", "onednn", "cuda"}) {
    EXPECT_NE(value_of(rows, key), "(missing)") << key;
    EXPECT_NE(value_of(rows, key), "") << key;
  }
#ifdef NANOTRON_WITH_CUDA
  for (const char* key : {"nccl", "cublas", "cudnn"}) EXPECT_NE(value_of(rows, key), "(missing)") << key;
#endif
}

TEST(Provenance, RunIsTheSameOnEveryRank) {
  int rank = 0, size = 0;
  MPI_Comm_rank(test::world(), &rank);
  MPI_Comm_size(test::world(), &size);
  setenv("SLURM_JOB_ID", std::to_string(4711 + rank).c_str(), 1);
  const Provenance rows = run_provenance(test::world());
  unsetenv("SLURM_JOB_ID");
  EXPECT_EQ(value_of(rows, "SLURM_JOB_ID"), "4711");
  EXPECT_EQ(value_of(rows, "ranks"), std::to_string(size));
  EXPECT_NE(value_of(rows, "command").find("provenance"), std::string::npos);
  EXPECT_EQ(value_of(rows, "hosts").rfind((size == 1 ? "0: " : "0-1: ") + host_name(), 0), 0u);
  EXPECT_EQ(value_of(rows, "start_time").size(), 20u);
  EXPECT_NE(to_text(rows).find("ranks: "), std::string::npos);
}

}  // namespace
}  // namespace nanotron
