#include "emulation/nccl_connections.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace nanotron::emulation {
namespace {

// Rank `rank` of comm is not there yet.
struct Missing {
  std::string what;
  const ncclComm* comm;
  int rank;
  std::function<bool()> is_there;
};

std::vector<Missing> needed;
std::vector<const ncclComm*> existing;

constexpr std::size_t largest_of_trees = 64 << 10;  // bytes

Algorithm algorithm_of(const Call& call) {
  const bool is_small = call.count * size_of(call.type) <= largest_of_trees;
  return call.kind == Kind::all_reduce && is_small ? Algorithm::tree : Algorithm::ring;
}

// True where `flag` was set before.
bool was_set(std::atomic<bool>& flag) { return flag.exchange(true); }

}  // namespace

std::vector<Connected> communicators() {
  std::vector<Connected> all;
  for (const ncclComm* const comm : existing) {
    const Row& row = comm->own();
    const auto has = [&](Algorithm a) { return row.connects_collectives[static_cast<std::size_t>(a)].load(); };
    const auto is_set = [](const auto& flag) { return flag.load(); };
    const auto any = [&](const auto& flags) { return std::ranges::any_of(flags, is_set); };
    all.push_back({comm->size, comm->max_blocks, has(Algorithm::ring), has(Algorithm::tree), any(row.connects_send),
                   any(row.connects_receive)});
  }
  return all;
}
void follow_communicator(const ncclComm& comm) { existing.push_back(&comm); }
void forget_communicator(const ncclComm& comm) { std::erase(existing, &comm); }

void need_send(ncclComm& comm, int to) {
  const auto self = static_cast<std::size_t>(comm.rank), peer = static_cast<std::size_t>(to);
  if (to == comm.rank || was_set(comm.own().connects_send[peer])) return;
  needed.push_back({"the first ncclSend to rank {}, which connects when that rank receives", &comm, to,
                    [&row = comm.row(to), self] { return row.connects_receive[self].load(); }});
}

void need_receive(ncclComm& comm, int from) {
  const auto self = static_cast<std::size_t>(comm.rank), peer = static_cast<std::size_t>(from);
  if (from == comm.rank || was_set(comm.own().connects_receive[peer])) return;
  needed.push_back({"the first ncclRecv from rank {}, which connects when that rank sends", &comm, from,
                    [&row = comm.row(from), self] { return row.connects_send[self].load(); }});
}

void need_collective(ncclComm& comm, const Call& call) {
  if (!is_nccl) return;
  const auto algorithm = static_cast<std::size_t>(algorithm_of(call));
  if (was_set(comm.own().connects_collectives[algorithm])) return;
  for (int r = 0; r < comm.size; ++r) {
    needed.push_back({"the first collective of an algorithm, which connects when rank {} calls its own", &comm, r,
                      [&row = comm.row(r), algorithm] { return row.connects_collectives[algorithm].load(); }});
  }
}

void connect() {
  std::vector<Missing> missing = std::exchange(needed, {});
  if (missing.empty()) return;
  const auto is_connected = [&] {
    std::erase_if(missing, [](const Missing& m) { return m.is_there(); });
    return missing.empty();
  };
  if (is_connected()) return;
  const Missing& first = missing.front();
  const int peer = first.comm->row(first.rank).world_rank.load();
  Scheduler::instance().run_until(is_connected, "the host, in " + fmt::format(fmt::runtime(first.what), peer) + ",");
}

}  // namespace nanotron::emulation
