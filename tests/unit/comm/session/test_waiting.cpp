// ranks: 2 3
// A rank that waits asleep leaves its core to others, in every call that blocks.
#include "nanotron/comm/session/waiting.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "nanotron/base/timer.hpp"
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
    choose(nullptr);  // whatever the environment of the test says
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
#ifdef NANOTRON_WITH_SANITIZERS
    constexpr double late = 0.4;  // s; the messages themselves take longer
#else
    constexpr double late = 0.2;
#endif
    MPI_Barrier(test::world());
    if (rank == 0) std::this_thread::sleep_for(std::chrono::duration<double>(late));
    const double begin = cpu_seconds(), wall = wall_seconds();
    call();
    return rank == 0 ? 0.0 : (cpu_seconds() - begin) / (wall_seconds() - wall);
  }

  int rank = 0, size = 1;
};

TEST_F(Waiting, SleepsWithMoreRanksThanCoresAlone) { EXPECT_EQ(waits_asleep(), size > usable_cores(test::world())); }

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

TEST_F(Waiting, AWordThatIsNoneIsToldByRankZero) {
  const auto said = [&](const char* word) {
    testing::internal::CaptureStderr();
    choose(word);
    return testing::internal::GetCapturedStderr();
  };
  const std::string text = said("slep");
  EXPECT_EQ(text.find("NANOTRON_WAIT: expected sleep or spin, found 'slep'") != text.npos, rank == 0) << text;
  for (const char* word : {"sleep", "spin", ""}) EXPECT_EQ(said(word), "") << word;
}

TEST_F(Waiting, AnotherSchedulingPolicyIsLeftAlone) {  // chrt -b
  const sched_param none{};
  for (const int policy : {SCHED_BATCH, SCHED_OTHER | SCHED_RESET_ON_FORK}) {
    if (sched_setscheduler(0, policy, &none) != 0) continue;
    choose("sleep");
    EXPECT_EQ(sched_getscheduler(0), policy);
  }
  sched_setscheduler(0, SCHED_OTHER, &none);
}

// A call on all ranks, of which rank 0 comes late.
using Call = std::pair<const char*, std::function<void()>>;

TEST_F(Waiting, CollectiveCallsSleepAndAreRight) {
  choose("sleep");
  const MPI_Comm comm = test::world();
  const auto n = static_cast<std::size_t>(size);
  std::vector<int> ones(n, 1), counts(n, 1), places(n), all(n);
  for (int r = 0; r < size; ++r) places[static_cast<std::size_t>(r)] = r;
  const int ranks_sum = size * (size - 1) / 2;
  int value = 0;
  const auto expect_ranks = [&] {
    for (int r = 0; r < size; ++r) EXPECT_EQ(all[static_cast<std::size_t>(r)], r);
  };
  const auto at_root = [&](const auto& check) {
    if (rank == 0) check();
    MPI_Barrier(comm);  // the others need not wait for the root
    std::ranges::fill(all, -1);
  };
  const std::vector<Call> calls{
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
         EXPECT_EQ(value, ranks_sum);
         value = rank;
         MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_INT, MPI_SUM, comm);
         EXPECT_EQ(value, ranks_sum);
       }},
      {"reduce",
       [&] {
         MPI_Reduce(&rank, &value, 1, MPI_INT, MPI_SUM, 0, comm);
         at_root([&] { EXPECT_EQ(value, ranks_sum); });
         value = rank;
         MPI_Reduce(rank == 0 ? MPI_IN_PLACE : &value, &value, 1, MPI_INT, MPI_SUM, 0, comm);
         at_root([&] { EXPECT_EQ(value, ranks_sum); });
       }},
      {"gather",
       [&] {
         MPI_Gather(&rank, 1, MPI_INT, all.data(), 1, MPI_INT, 0, comm);
         at_root(expect_ranks);
         MPI_Gatherv(&rank, 1, MPI_INT, all.data(), counts.data(), places.data(), MPI_INT, 0, comm);
         at_root(expect_ranks);
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
         std::ranges::fill(all, rank);
         MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all.data(), 1, MPI_INT, comm);
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
      {"communicators",
       [&] {
         std::array<MPI_Comm, 3> made{};
         MPI_Comm_dup(comm, &made[0]);
         MPI_Comm_split(comm, 0, rank, &made[1]);
         MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &made[2]);
         for (MPI_Comm& one : made) {
           int there = 0;
           MPI_Comm_size(one, &there);
           EXPECT_EQ(there, size);
           MPI_Comm_free(&one);
         }
       }},
  };
  for (const auto& [name, call] : calls) EXPECT_LT(share_of_core(call), 0.5) << name;
}

// In a ring, each message larger than what is sent without the receiver.
TEST_F(Waiting, MessagesSleepAndAreRight) {
  choose("sleep");
  const MPI_Comm comm = test::world();
  constexpr int count = 1 << 20, tag = 3;
  const int next = (rank + 1) % size, last = (rank + size - 1) % size;
  std::vector<int> sent(count, rank), got(count);
  std::array<MPI_Request, 2> requests{};
  std::array<MPI_Status, 2> statuses{};
  const auto expect_message = [&](const MPI_Status& status) {
    int n = 0;
    MPI_Get_count(&status, MPI_INT, &n);
    EXPECT_EQ(n, count);
    EXPECT_EQ(status.MPI_SOURCE, last);
    EXPECT_EQ(status.MPI_TAG, tag);
    EXPECT_EQ(got, std::vector<int>(count, last));
    std::ranges::fill(got, -1);
    MPI_Barrier(comm);  // with three ranks not all wait for rank 0
  };
  const auto start = [&] {
    MPI_Irecv(got.data(), count, MPI_INT, MPI_ANY_SOURCE, tag, comm, &requests[0]);
    MPI_Isend(sent.data(), count, MPI_INT, next, tag, comm, &requests[1]);
  };
  const std::vector<Call> calls{
      {"send and recv",
       [&] {
         if (rank % 2 == 0) MPI_Send(sent.data(), count, MPI_INT, next, tag, comm);
         MPI_Recv(got.data(), count, MPI_INT, MPI_ANY_SOURCE, tag, comm, &statuses[0]);
         if (rank % 2 == 1) MPI_Send(sent.data(), count, MPI_INT, next, tag, comm);
         expect_message(statuses[0]);
       }},
      {"sendrecv",
       [&] {
         MPI_Sendrecv(sent.data(), count, MPI_INT, next, tag, got.data(), count, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG,
                      comm, &statuses[0]);
         expect_message(statuses[0]);
       }},
      {"wait",
       [&] {
         start();
         MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
         MPI_Wait(&requests[0], &statuses[0]);
         EXPECT_EQ(requests[0], MPI_REQUEST_NULL);
         expect_message(statuses[0]);
       }},
      {"waitall",
       [&] {
         start();
         MPI_Waitall(2, requests.data(), statuses.data());
         expect_message(statuses[0]);
       }},
      {"waitany",
       [&] {
         start();
         std::array<int, 2> index{};
         for (std::size_t i = 0; i < 2; ++i) {
           MPI_Status status;
           MPI_Waitany(2, requests.data(), &index[i], &status);
           if (index[i] == 0) statuses[0] = status;
         }
         EXPECT_EQ(index[0] + index[1], 1);
         int none = 0;
         MPI_Waitany(2, requests.data(), &none, MPI_STATUS_IGNORE);
         EXPECT_EQ(none, MPI_UNDEFINED);
         expect_message(statuses[0]);
       }},
      {"waitsome",
       [&] {
         start();
         for (int left = 2; left > 0;) {
           int done = 0;
           std::array<int, 2> which{};
           std::array<MPI_Status, 2> their{};
           MPI_Waitsome(2, requests.data(), &done, which.data(), their.data());
           for (std::size_t i = 0; i < static_cast<std::size_t>(done); ++i) {
             if (which[i] == 0) statuses[0] = their[i];
           }
           left -= done;
         }
         int none = 0, which = 0;
         MPI_Waitsome(2, requests.data(), &none, &which, MPI_STATUSES_IGNORE);
         EXPECT_EQ(none, MPI_UNDEFINED);
         expect_message(statuses[0]);
       }},
      {"probe",
       [&] {
         MPI_Isend(sent.data(), count, MPI_INT, next, tag, comm, &requests[0]);
         MPI_Probe(MPI_ANY_SOURCE, tag, comm, &statuses[0]);
         MPI_Recv(got.data(), count, MPI_INT, statuses[0].MPI_SOURCE, tag, comm, &statuses[0]);
         MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
         expect_message(statuses[0]);
       }},
      {"mprobe",
       [&] {
         MPI_Isend(sent.data(), count, MPI_INT, next, tag, comm, &requests[0]);
         MPI_Message message = MPI_MESSAGE_NULL;
         MPI_Mprobe(MPI_ANY_SOURCE, tag, comm, &message, &statuses[0]);
         MPI_Imrecv(got.data(), count, MPI_INT, &message, &requests[1]);
         MPI_Wait(&requests[1], &statuses[0]);
         MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
         expect_message(statuses[0]);
       }},
  };
  for (const auto& [name, call] : calls) EXPECT_LT(share_of_core(call), 0.5) << name;
}

TEST_F(Waiting, ASendrecvThatFailsTakesNoLaterMessage) {
  choose("sleep");
  const MPI_Comm comm = test::world();
  int value = -1, stale = -1;
  if (rank == 0) {
    EXPECT_NE(MPI_Sendrecv(&rank, 1, MPI_INT, size, 0, &stale, 1, MPI_INT, 1, 0, comm, MPI_STATUS_IGNORE), MPI_SUCCESS);
  }
  MPI_Barrier(comm);
  if (rank == 1) MPI_Send(&rank, 1, MPI_INT, 0, 0, comm);
  if (rank == 0) MPI_Recv(&value, 1, MPI_INT, 1, 0, comm, MPI_STATUS_IGNORE);
  EXPECT_EQ(value, rank == 0 ? 1 : -1);
  EXPECT_EQ(stale, -1);
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
    EXPECT_LT(10 * spinning, asleep + 100);
  }
}

}  // namespace
}  // namespace nanotron::comm
