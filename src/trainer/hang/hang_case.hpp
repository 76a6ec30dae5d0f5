#pragma once

// What a rank does about a hang: its report, and on one rank the verdict.

#include <string>
#include <vector>

#include "hang_folder.hpp"
#include "nanotron/trainer/hang/hang_verdict.hpp"
#include "nanotron/trainer/hang/network_links.hpp"
#include "nanotron/trainer/hang/watchdog.hpp"

namespace nanotron::trainer {

/// Seconds that the file system may take, or refuse, when a rank is late.
constexpr double file_patience = 60.0;

/// Seconds in which nothing moved on this rank, what they may be, those since a step ended, and from how many on
/// another rank may have failed. has_failed: this one has, which is known before they have passed.
struct Idleness {
  double idle = 0.0, allowed = 0.0, of_step = 0.0, quiet_after = 0.0;
  bool has_failed = false;

  bool is_late() const { return has_failed || idle > allowed; }
};

class HangCase {
 public:
  HangCase(WatchdogSetup setup, int run_thread);

  /// A round: reports, withdraws, leads or follows. Does not return after a verdict.
  void attend(const Idleness& now);
  /// When the run ends without one.
  void close();

 private:
  void report(const Idleness& now);
  void handle_unwritable_report();
  void withdraw();
  bool is_asked(const Idleness& now);
  void lead(const Idleness& now);
  void follow();
  bool is_conclusive(const HangVerdict& verdict, const std::map<int, RankReport>& reports, const Idleness& now) const;
  [[noreturn]] void announce(const HangVerdict& verdict);

  WatchdogSetup setup_;
  HangFolder folder_;
  NetworkLinks links_;  // as they were when the watch began
  int run_thread_;
  double asking_;  // seconds between looks for a leader
  bool has_reported_ = false, was_late_ = false, leads_ = false;
  std::uint64_t events_ = 0;  // when it reported
  double mute_since_ = 0.0;   // s; no report could be written from then on; 0: none was to be
  double asked_at_ = 0.0;
  // As the leader.
  double led_since_ = 0.0, last_new_ = 0.0, judged_at_ = 0.0, judging_ = 0.0;
  std::size_t seen_ = 0;
  std::int64_t round_ = 0;
  std::vector<int> suspects_;  // of the last round
  // As another.
  std::string leader_;
  double leader_moved_ = 0.0;
};

}  // namespace nanotron::trainer
