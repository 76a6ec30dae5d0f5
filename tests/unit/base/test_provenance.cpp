// ranks: 1
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "nanotron/base/process.hpp"
#include "nanotron/base/provenance.hpp"

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
#if defined(NANOTRON_WITH_CUDA)
  for (const char* key : {"nccl", "cublas", "cudnn"}) EXPECT_NE(value_of(rows, key), "(missing)") << key;
#elif defined(NANOTRON_WITH_HIP)
  for (const char* key : {"hip", "rccl", "rocblas"}) EXPECT_NE(value_of(rows, key), "(missing)") << key;
#endif
}

TEST(Provenance, OfTheRunNamesItsPlaces) {
  setenv("SLURM_JOB_ID", "4711", 1);
  const Provenance rows = run_provenance({place_of_process(), place_of_process(), "other"});
  unsetenv("SLURM_JOB_ID");
  EXPECT_EQ(value_of(rows, "SLURM_JOB_ID"), "4711");
  EXPECT_EQ(value_of(rows, "ranks"), "3");
  EXPECT_NE(value_of(rows, "command").find("provenance"), std::string::npos);
  EXPECT_EQ(value_of(rows, "hosts").rfind("0-1: " + host_name(), 0), 0u);
  EXPECT_NE(value_of(rows, "hosts").find("; 2: other"), std::string::npos);
  EXPECT_EQ(value_of(rows, "start_time").size(), 20u);
  EXPECT_NE(to_text(rows).find("ranks: "), std::string::npos);
}

}  // namespace
}  // namespace nanotron
