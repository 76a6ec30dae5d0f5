#pragma once

// Which rank is late when nothing progresses: a pure function of the ranks' reports.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "nanotron/comm/host_map.hpp"
#include "nanotron/trainer/hang/rank_report.hpp"

namespace nanotron::trainer {

/// Why the others wait for a rank, the plainest cause first.
enum class Cause {
  differs,      // its operations are not those of the others, found by comparing all ranks at the end of a step
  silent,       // it wrote no report: stopped, killed, or its host is down
  elsewhere,    // it waits for nobody and has not entered, or makes no progress in, what others wait in
  network,      // its host has lost a link to the network, and others have not
  mismatch,     // same group and sequence number, but another operation or size, or it skipped or added one
  left,         // it has left an operation that others are still in
  system_call,  // all are in calls that do not show whom they wait for, and it is blocked in one for a file
};

struct Culprit {
  int rank = 0;
  Cause cause = Cause::silent;
  std::string sentence;  // in the grid's words
};

struct HangVerdict {
  std::vector<Culprit> culprits;  // of one cause; empty: no rank differs from the others
  std::string text;               // the sentences, and who waits where
};

/// A rank's ring; needed only where all members of a group have entered, or ranks wait in a cycle.
using OperationsOf = std::function<std::vector<ReportedOperation>(int rank)>;

/// For every rank that waits in an operation, finds the ranks that keep it there: members of its group that left no
/// report, that have not entered it, or, if all have entered it, that have left it or make no progress in it. The
/// culprits are the ranks at the ends of these chains; if these wait too, those of a host without its network; in a
/// cycle, the ranks whose records disagree. If reports say that operations differ, the ranks that differ come first.
/// reports: of the ranks that wrote one; host_of_rank: of all ranks of the world.
HangVerdict judge(const std::map<int, RankReport>& reports, const comm::HostMap& host_of_rank,
                  const OperationsOf& operations_of);

}  // namespace nanotron::trainer
