#pragma once

// A part of many runs: all of them under tests/run.sh --full (NANOTRON_FULL), else as many as CI has time for, chosen
// by NANOTRON_SEED, or the time, which is printed. As many seeds in a row as there are parts take every run once.

#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace nanotron::test {

/// The same on all ranks of the communicator.
inline unsigned sampling_seed(MPI_Comm comm) {
  const char* const given = std::getenv("NANOTRON_SEED");
  unsigned seed = given != nullptr
                      ? static_cast<unsigned>(std::strtoul(given, nullptr, 10))
                      : static_cast<unsigned>(std::chrono::system_clock::now().time_since_epoch().count() / 1000000);
  MPI_Bcast(&seed, 1, MPI_UNSIGNED, 0, comm);
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  if (rank == 0) std::printf("NANOTRON_SEED=%u\n", seed);
  return seed;
}

inline bool all_runs() { return std::getenv("NANOTRON_FULL") != nullptr; }

/// Parameters of tests that are the same for each: one, another one for other numbers of ranks, where a seed is given.
inline std::vector<const char*> turn_of(const std::vector<const char*>& all) {
  const char *const seed = std::getenv("NANOTRON_SEED"), *const ranks = std::getenv("NANOTRON_TEST_RANKS");
  if (all_runs() || seed == nullptr || ranks == nullptr) return all;
  return {all[(std::strtoul(seed, nullptr, 10) + std::strtoul(ranks, nullptr, 10)) % all.size()]};
}

/// About `count` of them, evenly spaced. Collective; in the order of `all`.
template <class U>
std::vector<U> sampled(const std::vector<U>& all, std::size_t count, MPI_Comm comm) {
  if (all_runs() || all.size() <= count) return all;
  const std::size_t parts = (all.size() + count - 1) / count;
  std::vector<U> some;
  for (std::size_t i = sampling_seed(comm) % parts; i < all.size(); i += parts) some.push_back(all[i]);
  return some;
}

}  // namespace nanotron::test
