#pragma once

// Whether the ranks of a group did the same operations in the same order.

#include <map>
#include <string>
#include <vector>

#include "nanotron/trainer/hang/rank_report.hpp"

namespace nanotron::trainer {

using Sequence = std::map<std::uint64_t, ReportedOperation>;  // by sequence number
Sequence operations_in(const std::vector<ReportedOperation>& ring, const std::string& group);

struct OddOne {
  int rank = 0;
  std::string what;
};

/// The ranks whose operation is not that of the others at the first sequence number where names or sizes differ, or
/// from which on a rank is ahead by one it skipped. Without a majority: those whose record is new, where the same place
/// had another before. Empty where all agree.
std::vector<OddOne> first_disagreement(const std::map<int, Sequence>& of_rank);

/// Where the operations of a step in the ring are not those of the step before, complete except for the last: "skipped
/// ..." or "did ...". Empty where they are the same, or so many came since that this is not known.
std::string departure(const std::vector<ReportedOperation>& ring);

}  // namespace nanotron::trainer
