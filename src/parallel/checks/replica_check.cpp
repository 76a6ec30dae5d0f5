#include "nanotron/parallel/checks/replica_check.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/communicator.hpp"

namespace nanotron::parallel {
namespace {

bool are_equal(comm::Group& replicas, std::uint64_t hash) {
  std::array<std::uint64_t, 2> largest{hash, ~hash};
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, largest.data(), 2, MPI_UINT64_T, MPI_MAX, replicas.mpi()));
  return largest[0] == ~largest[1];
}

// World ranks by hash.
using Holders = std::map<std::uint64_t, std::vector<std::uint64_t>>;

Holders gather(comm::Group& replicas, std::uint64_t hash, int world_rank) {
  const std::array<std::uint64_t, 2> mine{hash, static_cast<std::uint64_t>(world_rank)};
  std::vector<std::uint64_t> all(2 * static_cast<std::size_t>(replicas.size()));
  NANOTRON_CHECK_MPI(MPI_Allgather(mine.data(), 2, MPI_UINT64_T, all.data(), 2, MPI_UINT64_T, replicas.mpi()));
  Holders holders;
  for (std::size_t i = 0; i < all.size(); i += 2) holders[all[i]].push_back(all[i + 1]);
  return holders;
}

std::string ranks(const std::vector<std::uint64_t>& list) {
  return fmt::format("rank{} {}", list.size() == 1 ? "" : "s", fmt::join(list, ", "));
}

// "rank 3 against ranks 0, 1, 2"; without a majority all sides: "ranks 0, 1 against ranks 2, 3".
std::string who_differs(const Holders& holders) {
  const auto largest = std::max_element(holders.begin(), holders.end(),
                                        [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  std::size_t all = 0;
  for (const auto& [hash, list] : holders) all += list.size();
  std::string text;
  for (auto side = holders.begin(); side != holders.end(); ++side) {
    const bool majority = 2 * largest->second.size() > all;
    if (majority && side == largest) continue;
    text += fmt::format("{}{}", text.empty() ? "" : majority ? ", " : " against ", ranks(side->second));
  }
  if (2 * largest->second.size() > all) text += " against " + ranks(largest->second);
  return text;
}

}  // namespace

void ReplicaCheck::require_equal(std::uint64_t hash, std::int64_t step) {
  comm::collectively(world_->mpi(), [&] {
    if (are_equal(*replicas_, hash)) return;
    const Holders holders = gather(*replicas_, hash, world_->rank());
    is_outvoted_ = std::ranges::any_of(holders, [&](const auto& side) {
      return side.first != hash && 2 * side.second.size() > static_cast<std::size_t>(replicas_->size());
    });
    fail(ExitCode::system_error,
         {.what = "weights or moments differ between ranks that must have the same ones",
          .expected = fmt::format("equal weights and moments on the {} ranks of a {} group", replicas_->size(), name_),
          .found = who_differs(holders),
          .where = fmt::format("after step {}; {}", step,
                               last_good_ < 0 ? std::string("the first comparison of this run")
                                              : fmt::format("they were equal after step {}", last_good_)),
          .change = "memory, processor or network of a node is faulty: exclude it and resume; every "
                    "checkpoint was written while they were equal"});
  });
  last_good_ = step;
}

}  // namespace nanotron::parallel
