#include "nanotron/comm/watch/recorded_groups.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/transport/device_transport.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/rank_ranges.hpp"

namespace nanotron::comm {
namespace {

// Ranks of the world, by rank in the group. Local. Within a library's call nothing may be thrown: empty after an error.
std::vector<int> ranks_of_group(MPI_Group group) {
  int size = 0;
  MPI_Group world = MPI_GROUP_NULL;
  if (MPI_Group_size(group, &size) != MPI_SUCCESS || MPI_Comm_group(MPI_COMM_WORLD, &world) != MPI_SUCCESS) return {};
  std::vector<int> mine(static_cast<std::size_t>(size)), theirs(mine.size());
  std::iota(mine.begin(), mine.end(), 0);
  if (MPI_Group_translate_ranks(group, size, mine.data(), world, theirs.data()) != MPI_SUCCESS) theirs.clear();
  MPI_Group_free(&world);
  return theirs;
}

std::vector<int> ranks_of(MPI_Comm communicator) {
  MPI_Group group = MPI_GROUP_NULL;
  if (MPI_Comm_group(communicator, &group) != MPI_SUCCESS) return {};
  std::vector<int> ranks = ranks_of_group(group);
  MPI_Group_free(&group);
  return ranks;
}

// This rank's ends of the links to a neighbour, one for each direction and lane.
void record_lanes(Group& group, const std::string& name, const std::vector<int>& ranks) {
  const auto n = ranks.size(), me = static_cast<std::size_t>(group.rank());
  const std::size_t neighbours[2] = {(me + 1) % n, (me + n - 1) % n};
  auto& numbers = group.account().recorded.messages;
  for (const std::size_t previous : {0, 1}) {
    const int peer = ranks[neighbours[previous]];
    for (const std::size_t receives : {0, 1}) {
      const std::vector<int> ends = receives != 0 ? std::vector{peer, ranks[me]} : std::vector{ranks[me], peer};
      const bool up = (previous == 0) == (receives == 0);  // from a rank to its next
      for (std::size_t lane = 0; lane < message_lanes; ++lane) {
        const int number = flight_recorder().group(fmt::format("{}, rank {} to its {} rank {}, lane {}", name, ends[0],
                                                               up ? "next" : "previous", ends[1], lane),
                                                   ends);
        flight_recorder().compare(number, ranks[me]);
        numbers[receives][previous][lane] = number;
      }
    }
  }
}

void record(Group& group, const std::string& name, const std::vector<int>& ranks, int me) {
  const int number = flight_recorder().group(name, ranks);
  flight_recorder().compare(number, me);
  group.account().recorded.collectives = number;
}

// By GroupKind.
constexpr const char* names[] = {"world",
                                 "dp",
                                 "dp shard",
                                 "dp replicate",
                                 "expert dp",
                                 "expert dp shard",
                                 "expert dp replicate",
                                 "ep",
                                 "ep across nodes",
                                 "ep in a node",
                                 "tp",
                                 "cp",
                                 "cp all-to-all",
                                 "cp ring",
                                 "pp",
                                 "embedding"};

// Attribute of a communicator: its number in the recorder. Freed with MPI.
int number_key() {
  static const int key = [] {
    int made = MPI_KEYVAL_INVALID;
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &made, nullptr);
    return made;
  }();
  return key;
}

int number_of_ranks(const std::vector<int>& ranks) {
  return flight_recorder().group("MPI on ranks " + ranks_text(ranks), ranks);
}

}  // namespace

std::string asynchronous_error() { return detail::device_transport_error(); }

// All of an axis' groups are numbered by their first ranks: each group counts the first ranks before its own.
void record_groups(ProcessGrid& grid) {
  Group& world = grid.world();
  struct Recorded {
    Group* group;
    GroupKind kind;
    std::vector<int> ranks;
    std::ptrdiff_t first;  // in the group
  };
  std::vector<Recorded> all;
  std::vector<int> is_first, before;
  grid.for_each_group([&](Group& group, GroupKind kind) {
    if (group.is_planned() || (kind == GroupKind::embedding && !grid.shape().ties_embedding)) return;
    std::vector<int> ranks = group.size() > 1 ? ranks_of(group.mpi()) : std::vector{world.rank()};
    const std::ptrdiff_t first = std::ranges::min_element(ranks) - ranks.begin();
    is_first.push_back(first == group.rank() ? 1 : 0);
    all.push_back({&group, kind, std::move(ranks), first});
  });
  if (world.is_planned()) return;
  before.assign(is_first.size(), 0);  // rank 0 receives nothing
  NANOTRON_CHECK_MPI(
      MPI_Exscan(is_first.data(), before.data(), static_cast<int>(before.size()), MPI_INT, MPI_SUM, world.mpi()));
  if (world.size() > 1) record(world, "world", ranks_of(world.mpi()), world.rank());
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto& [group, kind, ranks, first] = all[i];
    if (group->size() == 1) continue;
    NANOTRON_CHECK_MPI(MPI_Bcast(&before[i], 1, MPI_INT, static_cast<int>(first), group->mpi()));
    const std::string name = fmt::format("{} group {}", names[static_cast<std::size_t>(kind)], before[i]);
    record(*group, name, ranks, world.rank());
    if (kind == GroupKind::cp || kind == GroupKind::cp_ring || kind == GroupKind::pp) record_lanes(*group, name, ranks);
  }
}

int recorded_ranks(MPI_Comm communicator) {
  if (!flight_recorder().is_on() || communicator == MPI_COMM_NULL) return -1;
  void* stored = nullptr;
  int found = 0;
  if (MPI_Comm_get_attr(communicator, number_key(), &stored, &found) != MPI_SUCCESS) return 0;
  if (found != 0) return static_cast<int>(reinterpret_cast<std::intptr_t>(stored));
  const std::vector<int> ranks = ranks_of(communicator);
  const int number = ranks.size() > 1 ? number_of_ranks(ranks) : -1;
  MPI_Comm_set_attr(communicator, number_key(), reinterpret_cast<void*>(static_cast<std::intptr_t>(number)));
  return number;
}

}  // namespace nanotron::comm
