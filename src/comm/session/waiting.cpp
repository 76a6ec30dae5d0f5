#include "nanotron/comm/session/waiting.hpp"

#include <fmt/core.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/base/process.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/comm/limits/limits.hpp"

namespace nanotron::comm {
namespace {

using namespace std::chrono_literals;

// Global, as MPI itself is: a wait inside a library has no object of ours.
bool asleep = false, leads = true;

constexpr unsigned polls_at_once = 256;  // of a rank with a core of its own, before it yields
// Before it sleeps a rank yields its core, which has a lower latency while no other process wants the core. If a yield
// takes longer than `turn`, other work ran meanwhile: the next waits_without_yield waits only sleep.
constexpr std::chrono::nanoseconds yields_for = 50us, turn = 500us;
constexpr unsigned waits_without_yield = 1000, yields_at_once = 16;
// Waits without yield that are left. Threads that write checkpoints wait too; a count that one of them loses does not
// matter.
std::atomic<unsigned> crowded{0};
constexpr auto relaxed = std::memory_order_relaxed;
constexpr std::chrono::nanoseconds shortest = 5us;
// Of a rank with a core; with n ranks on a core each sleeps n times as long, or polling takes a growing part of it.
std::chrono::nanoseconds longest = 200us;
constexpr int share = 16;  // sleep = wait so far / share: the max relative delay

// A rank that waits runs only briefly after a sleep, so it asks for exact wake-ups and short time slices. Both are
// hints; kernels without them refuse. The second applies only to SCHED_OTHER, which a launcher may have changed (chrt).
void ask_for_short_turns() {
  prctl(PR_SET_TIMERSLACK, 1000);  // ns: by default a sleep may end 50 us late
  struct {
    std::uint32_t size, policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime, deadline, period;
  } attributes{};
  const bool known = syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) == 0;
  if (!known || attributes.policy != SCHED_OTHER) return;
  attributes.runtime = 100'000;  // ns, the time slice (Linux 6.12)
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

// NANOTRON_WAIT of this rank; empty where it is not set. A wrong value warns and counts as not set.
std::string_view chosen_waiting() {
  const char* word = std::getenv("NANOTRON_WAIT");
  const std::string_view chosen = word != nullptr ? word : "";
  if (!chosen.empty() && chosen != "sleep" && chosen != "spin") {
    fmt::print(stderr, "warning: NANOTRON_WAIT: expected sleep or spin, found '{}'; ignored\n", chosen);
  }
  return chosen;
}

}  // namespace

int usable_cores(MPI_Comm node) {
  std::array<cpu_set_t, 16> mine{}, all{};  // 16,384 CPUs, more than any kernel supports
  if (sched_getaffinity(0, sizeof(mine), mine.data()) != 0) std::memset(mine.data(), 0xFF, sizeof(mine));
  NANOTRON_CHECK_MPI(MPI_Allreduce(mine.data(), all.data(), sizeof(mine), MPI_BYTE, MPI_BOR, node));
  const int cores = CPU_COUNT_S(sizeof(all), all.data());

  int ranks = 1;
  NANOTRON_CHECK_MPI(MPI_Comm_size(node, &ranks));
  const CoreQuota here = core_quota();
  std::vector<CoreQuota> quotas(static_cast<std::size_t>(ranks));
  NANOTRON_CHECK_MPI(MPI_Allgather(&here, sizeof(here), MPI_BYTE, quotas.data(), sizeof(here), MPI_BYTE, node));
  std::map<std::uint64_t, double> limits;
  for (const CoreQuota& q : quotas) limits[q.group] = q.cores;
  double allowed = 0.0;
  for (const auto& [group, limit] : limits) allowed += limit;
  return std::max(1, static_cast<int>(std::min<double>(cores, allowed)));
}

bool waits_asleep() { return asleep; }

bool leads_host() { return leads; }

namespace {

// Ranks of a node may have names of their own (NANOTRON_HOST_NAME).
bool is_first_of_its_name(const Communicator& node) {
  const std::uint64_t mine = std::hash<std::string>()(host_name());
  std::vector<std::uint64_t> names(static_cast<std::size_t>(node.size()));
  NANOTRON_CHECK_MPI(MPI_Allgather(&mine, 1, MPI_UINT64_T, names.data(), 1, MPI_UINT64_T, node.get()));
  return std::ranges::find(names, mine) - names.begin() == node.rank();
}

}  // namespace

void choose_waiting(MPI_Comm world) {
  const Communicator ranks = Communicator::duplicate(world), node = ranks.split_by_node();
  leads = is_first_of_its_name(node);
  const int cores = usable_cores(node.get());
  longest = 200us * std::clamp(node.size() / cores, 1, 50);
  int crowded_node = node.size() > cores;
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &crowded_node, 1, MPI_INT, MPI_MAX, ranks.get()));
  const std::string_view chosen = ranks.rank() == 0 ? chosen_waiting() : "";
  int sleeps = chosen == "sleep" ? 1 : chosen == "spin" ? 0 : crowded_node;
  NANOTRON_CHECK_MPI(MPI_Bcast(&sleeps, 1, MPI_INT, 0, ranks.get()));
  asleep = sleeps != 0;
  if (asleep) ask_for_short_turns();
}

bool Pause::operator()() {
  ++polls_;
  if (nanotron_while_waiting != nullptr) nanotron_while_waiting();
  if (!asleep) {
    if (polls_ >= polls_at_once) {
      sched_yield();
#if defined(__x86_64__)
    } else {
      __builtin_ia32_pause();
#elif defined(__aarch64__)
    } else {
      asm volatile("isb");  // what pause is on x86; yield does nothing on most cores
#endif
    }
    return polls_ % polls_at_once == 0;
  }
  const auto now = Clock::now();
  if (polls_ == 1) {
    begin_ = now;
    if (const unsigned left = crowded.load(relaxed); left > 0) crowded.store(left - 1, relaxed);
  }
  if (const auto waited = now - begin_; waited < yields_for && crowded.load(relaxed) == 0) {
    sched_yield();
    if (Clock::now() - now > turn) crowded.store(waits_without_yield, relaxed);
    return polls_ % yields_at_once == 0;
  }
  std::this_thread::sleep_for(std::clamp<std::chrono::nanoseconds>((now - begin_) / share, shortest, longest));
  return true;
}

}  // namespace nanotron::comm
