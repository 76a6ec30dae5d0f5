#pragma once

// What a start costs besides its computation: collective calls, messages, bytes and opened files of this rank, by
// phase, from MPI_Init to the first step. comm/session/blocking_calls.cpp tells it every collective call of the
// process.

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace nanotron {

enum class StartCall {
  barrier,
  broadcast,
  reduce,
  all_reduce,
  scan,
  gather,
  all_gather,
  all_to_all,
  duplicate,  // of a communicator
  split,
  group,  // of known ranks
};

/// Of one rank. bytes: what its calls leave in its memory, as results or inside of MPI while they run.
struct StartCost {
  std::uint64_t calls = 0, messages = 0, bytes = 0, files = 0;
  StartCost& operator+=(const StartCost& other);
  bool operator==(const StartCost&) const = default;
};

/// A collective call over `ranks` ranks, to which each gives `bytes` bytes, in the tree algorithms of MPI libraries:
/// with l = ceil(log2 ranks), l messages; 2 l for a communicator, whose ranks agree on a number; ranks - 1 for an
/// all-to-all. Results have the size of what one rank gives, or of what all give: those of an all-gather or all-to-all,
/// and of a gather on its root. A split gathers 8 bytes of each rank on all; a communicator of known ranks holds 8
/// bytes for each of its own.
StartCost cost_of(StartCall call, int ranks, std::uint64_t bytes, bool is_root = false);

struct StartPhase {
  std::string name;
  StartCost cost;
  std::size_t resident = 0;  // bytes of memory at its end; 0 in a plan
};

/// The same of a call whose ranks give different numbers of bytes, `all` together.
StartCost cost_of_uneven(StartCall call, int ranks, std::uint64_t mine, std::uint64_t all, bool is_root);

class StartAccount {
 public:
  StartAccount();
  /// The next phase begins; the first one, of MPI and the deck, begins with the process.
  void enter(const char* phase);
  /// The first step begins: nothing is counted from now on.
  void close();
  bool is_open() const { return is_open_.load(std::memory_order_relaxed); }

  void add(const StartCost& cost);
  std::vector<StartPhase> phases() const;

 private:
  std::atomic<bool> is_open_{true};
  mutable std::mutex mutex_;  // files are opened by other threads too
  std::vector<StartPhase> phases_;
};

/// The account of this process. Global, as MPI is.
StartAccount& start_account();

/// A file was opened.
inline void count_opened_file() {
  if (start_account().is_open()) start_account().add({.files = 1});
}

}  // namespace nanotron
