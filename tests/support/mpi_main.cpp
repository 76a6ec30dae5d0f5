// main() of every test program: MPI and Kokkos around GoogleTest, one voice for all ranks.
#include <gtest/gtest.h>
#include <mpi.h>

#include <Kokkos_Core.hpp>
#include <cstdio>
#include <cstdlib>

#include "nanotron/comm/group.hpp"
#include "nanotron/comm/session/mpi_session.hpp"
#include "support/world.hpp"

namespace nanotron::test {
namespace {

MPI_Comm world_communicator = MPI_COMM_NULL;

/// Prints the failures of a rank that otherwise stays silent.
class FailurePrinter : public ::testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}

 private:
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d: %s:%d: failure\n%s\n", rank_, result.file_name() ? result.file_name() : "?",
                 result.line_number(), result.summary());
    std::fflush(stderr);
  }

  int rank_;
};

/// A launcher of another MPI starts N runs of one rank instead of one run of N: a silent pass.
bool has_expected_size() {
  const char* expected = std::getenv("NANOTRON_TEST_RANKS");
  int size = 0;
  MPI_Comm_size(world_communicator, &size);
  if (expected == nullptr || std::atoi(expected) == size) return true;
  std::fprintf(stderr, "expected %s ranks, found %d: does mpiexec belong to the MPI linked?\n", expected, size);
  return false;
}

int run_all_tests(int argc, char** argv) {
  int rank = 0;
  MPI_Comm_rank(world_communicator, &rank);
  ::testing::InitGoogleTest(&argc, argv);
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (rank != 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter(rank));
  }
  int failed = 0;
  {
    comm::gpu_of_rank(comm::Communicator::duplicate(world_communicator));  // sets up CUDA, as the programs do
    Kokkos::ScopeGuard kokkos(argc, argv);
    failed = RUN_ALL_TESTS() != 0 ? 1 : 0;
  }
  if (::testing::UnitTest::GetInstance()->test_to_run_count() == 0) {  // of a filter that no name matches
    if (rank == 0) std::fprintf(stderr, "expected tests, found none to run\n");
    failed = 1;
  }
  int any_failed = 0;
  MPI_Allreduce(&failed, &any_failed, 1, MPI_INT, MPI_MAX, world_communicator);
  return any_failed;
}

}  // namespace

MPI_Comm world() { return world_communicator; }

}  // namespace nanotron::test

int main(int argc, char** argv) {
  const nanotron::comm::MpiSession mpi(argc, argv);
  MPI_Comm_dup(mpi.world(), &nanotron::test::world_communicator);
  MPI_Comm_set_errhandler(nanotron::test::world_communicator, MPI_ERRORS_RETURN);
  const bool right_size = nanotron::test::has_expected_size();
  const int status =
      right_size ? nanotron::comm::run_guarded(mpi.world(), [&] { return nanotron::test::run_all_tests(argc, argv); })
                 : 1;
  MPI_Comm_free(&nanotron::test::world_communicator);
  return status;
}
