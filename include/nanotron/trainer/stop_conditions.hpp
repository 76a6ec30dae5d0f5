#pragma once

// Reasons to stop before the last step: a signal (base/stop_signals.hpp), the wall-time limit of the deck, a file named STOP in the run directory.

#include <filesystem>
#include <string>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/deck/config.hpp"

namespace nanotron::trainer {

enum class StopReason { none = 0, stop_file = 1, wall_time = 2, signal = 3 };
std::string describe(StopReason reason);

class StopConditions {
 public:
  /// start: wall_seconds() at the start of the program.
  StopConditions(const deck::RunConfig& run, double start);

  /// What any rank has seen. Collective; the same on every rank. next_seconds: how long the next step and
  /// the checkpoint behind it will take, so that both still fit. Rank 0 looks for the STOP file and
  /// removes it.
  StopReason check(comm::Group& world, double next_seconds);

 private:
  StopReason seen_here(bool looks_at_files, double next_seconds);

  std::filesystem::path stop_file_;
  double deadline_;  // 0: none
};

}  // namespace nanotron::trainer
