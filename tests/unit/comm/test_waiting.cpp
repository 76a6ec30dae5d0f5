// ranks: 2 3
// A rank that waits asleep leaves its core to others, in every call that blocks.
#include "nanotron/comm/waiting.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <thread>
#include <vector>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/group.hpp"
#include "support/world.hpp"

namespace nanotron::comm {
namespace {

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

class Waiting : public ::testing::Test {
 protected:
  Waiting() {
    MPI_Comm_rank(test::world(), &rank);
    MPI_Comm_size(test::world(), &size);
  }
  ~Waiting() override { choose(nullptr); }

  static void choose(const char* how) {
    if (how == nullptr) {
      unsetenv("NANOTRON_WAIT");
    } else {
      setenv("NANOTRON_WAIT", how, 1);
    }
    choose_waiting(test::world());
  }

  // What `call` takes of the cores on the ranks that wait in it for rank 0, which comes late, as a share of the time.
  double share_of_core(const std::function<void()>& call) const {
    constexpr double late = 0.2;
    MPI_Barrier(test::world());
    if (rank == 0) std::this_thread::sleep_for(std::chrono::duration<double>(late));
    const double begin = cpu_seconds();
    call();
    return rank == 0 ? 0.0 : (cpu_seconds() - begin) / late;
  }

  int rank = 0, size = 1;
};

TEST_F(Waiting, SleepsWithMoreRanksThanCoresAlone) {
  EXPECT_EQ(waits_asleep(), size > usable_cores(test::world()));
}

TEST_F(Waiting, TheEnvironmentOfRankZeroOverrules) {
  choose(rank == 0 ? "sleep" : "spin");
  EXPECT_TRUE(waits_asleep());
  choose(rank == 0 ? "spin" : "sleep");
  EXPECT_FALSE(waits_asleep());
}

TEST_F(Waiting, RanksMayDiffer) {  // as under a launcher that gives the variable to some of them
  choose(rank == 0 ? nullptr : "spin");
  EXPECT_EQ(waits_asleep(), size > usable_cores(test::world()));
  choose(rank == 0 ? "nonsense" : "sleep");
  EXPECT_EQ(waits_asleep(), size > usable_cores(test::world()));
}

TEST_F(Waiting, EveryBlockingCallSleepsAndIsRight) {
  choose("sleep");
  const MPI_Comm comm = test::world();
  const auto n = static_cast<std::size_t>(size);
  std::vector<int> ones(n, 1), counts(n, 1), places(n), all(n);
  for (int r = 0; r < size; ++r) places[static_cast<std::size_t>(r)] = r;
  int value = 0;
  const auto expect_ranks = [&] {
    for (int r = 0; r < size; ++r) EXPECT_EQ(all[static_cast<std::size_t>(r)], r);
  };
  const std::vector<std::pair<const char*, std::function<void()>>> calls{
      {"barrier", [&] { MPI_Barrier(comm); }},
      {"bcast",
       [&] {
         value = rank == 0 ? 7 : 0;
         MPI_Bcast(&value, 1, MPI_INT, 0, comm);
         EXPECT_EQ(value, 7);
       }},
      {"allreduce",
       [&] {
         MPI_Allreduce(&rank, &value, 1, MPI_INT, MPI_SUM, comm);
         EXPECT_EQ(value, size * (size - 1) / 2);
       }},
      {"reduce_scatter_block",
       [&] {
         MPI_Reduce_scatter_block(ones.data(), &value, 1, MPI_INT, MPI_SUM, comm);
         EXPECT_EQ(value, size);
       }},
      {"allgather",
       [&] {
         MPI_Allgather(&rank, 1, MPI_INT, all.data(), 1, MPI_INT, comm);
         expect_ranks();
       }},
      {"allgatherv",
       [&] {
         MPI_Allgatherv(&rank, 1, MPI_INT, all.data(), counts.data(), places.data(), MPI_INT, comm);
         expect_ranks();
       }},
      {"scatterv",
       [&] {
         MPI_Scatterv(places.data(), counts.data(), places.data(), MPI_INT, &value, 1, MPI_INT, 0, comm);
         EXPECT_EQ(value, rank);
       }},
      {"messages",
       [&] {
         if (rank > 0) MPI_Recv(&value, 1, MPI_INT, rank - 1, 0, comm, MPI_STATUS_IGNORE);
         if (rank + 1 < size) MPI_Send(&rank, 1, MPI_INT, rank + 1, 0, comm);
         EXPECT_EQ(value, rank > 0 ? rank - 1 : value);
       }},
      {"sendrecv",
       [&] {
         MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % size, 0, &value, 1, MPI_INT, (rank + size - 1) % size, 0, comm,
                      MPI_STATUS_IGNORE);
         EXPECT_EQ(value, (rank + size - 1) % size);
         MPI_Barrier(comm);  // with three ranks not all wait for rank 0
       }},
      {"waitall",
       [&] {
         std::array<MPI_Request, 2> requests{};
         MPI_Irecv(&value, 1, MPI_INT, (rank + size - 1) % size, 0, comm, &requests[0]);
         MPI_Isend(&rank, 1, MPI_INT, (rank + 1) % size, 0, comm, &requests[1]);
         MPI_Waitall(2, requests.data(), MPI_STATUSES_IGNORE);
         EXPECT_EQ(value, (rank + size - 1) % size);
         MPI_Barrier(comm);
       }},
      {"split",
       [&] {
         MPI_Comm made = MPI_COMM_NULL;
         MPI_Comm_split(comm, 0, rank, &made);
         MPI_Comm_free(&made);
       }},
  };
  for (const auto& [name, call] : calls) EXPECT_LT(share_of_core(call), 0.5) << name;
}

TEST_F(Waiting, SharedMemorySleeps) {
  choose("sleep");
  Group group(Communicator::duplicate(test::world()), Transport::mpi);
  std::vector<double> data(100'000, 1.0);
  EXPECT_LT(share_of_core([&] { all_reduce(group, data.data(), data.size(), ReduceOp::sum); }), 0.5);
  for (const double x : data) ASSERT_EQ(x, size);
}

TEST_F(Waiting, SpinsOtherwise) {
  if (size > usable_cores(test::world())) return;  // who spins may not even run
  const auto sleeps = [&](const char* how) {
    choose(how);
    rusage before{}, after{};
    getrusage(RUSAGE_SELF, &before);
    share_of_core([] { MPI_Barrier(test::world()); });
    getrusage(RUSAGE_SELF, &after);
    return after.ru_nvcsw - before.ru_nvcsw;  // switches to others that this rank asked for
  };
  const long asleep = sleeps("sleep"), spinning = sleeps("spin");
  if (rank > 0) {
    EXPECT_LT(spinning, asleep / 10);
  }
}

}  // namespace
}  // namespace nanotron::comm
