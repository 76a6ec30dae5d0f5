#include "nanotron/base/start_account.hpp"

#include <bit>

#include "nanotron/base/process.hpp"

namespace nanotron {

StartCost& StartCost::operator+=(const StartCost& other) {
  calls += other.calls;
  messages += other.messages;
  bytes += other.bytes;
  files += other.files;
  return *this;
}

StartCost cost_of_uneven(StartCall call, int ranks, std::uint64_t mine, std::uint64_t all, bool is_root) {
  const auto n = static_cast<std::uint64_t>(ranks);
  const auto rounds = static_cast<std::uint64_t>(std::bit_width(n - 1));
  switch (call) {
    case StartCall::barrier:
      return {.calls = 1, .messages = rounds};
    case StartCall::gather:
      return {.calls = 1, .messages = rounds, .bytes = is_root ? all : mine};
    case StartCall::all_gather:
      return {.calls = 1, .messages = rounds, .bytes = all};
    case StartCall::all_to_all:
      return {.calls = 1, .messages = n - 1, .bytes = all};
    case StartCall::duplicate:
      return {.calls = 1, .messages = 2 * rounds, .bytes = 8};
    case StartCall::split:
    case StartCall::group:
      return {.calls = 1, .messages = 2 * rounds, .bytes = 8 * n};
    default:
      return {.calls = 1, .messages = rounds, .bytes = mine};
  }
}

StartCost cost_of(StartCall call, int ranks, std::uint64_t bytes, bool is_root) {
  return cost_of_uneven(call, ranks, bytes, bytes * static_cast<std::uint64_t>(ranks), is_root);
}

StartAccount::StartAccount() { phases_.push_back({.name = "MPI and deck", .cost = {}}); }

void StartAccount::enter(const char* phase) {
  if (!is_open()) return;
  const std::lock_guard lock(mutex_);
  phases_.back().resident = resident_bytes();
  phases_.push_back({.name = phase, .cost = {}});
}

void StartAccount::close() {
  const std::lock_guard lock(mutex_);
  if (is_open_.exchange(false)) phases_.back().resident = resident_bytes();
}

void StartAccount::add(const StartCost& cost) {
  const std::lock_guard lock(mutex_);
  phases_.back().cost += cost;
}

std::vector<StartPhase> StartAccount::phases() const {
  const std::lock_guard lock(mutex_);
  return phases_;
}

StartAccount& start_account() {
  static StartAccount account;
  return account;
}

}  // namespace nanotron
