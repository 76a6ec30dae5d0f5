#pragma once

// The time of a step from the lists of what its ranks do (StepEvent), kernel by kernel and message by message.
//
// The ranks of a pipeline are played together, in the order of time. Kernels of a rank run one after another. A started
// collective begins when what was queued before it is done and the collective before it of its communicator has ended;
// a message begins when it is sent and its receive is posted. A wait ends no earlier than what it waits for.
//
// Communicators share the network. A transfer first waits for its latency l, then moves for the time s that it takes
// alone at its bandwidth. Of k transfers that move through the same link of a rank each has 1/k of its own rate: in
// each level of the network (inside and between nodes) a rank has a link out and a link in, a collective uses both, a
// message that out of the sender and that into the receiver, and the fuller of the two counts:
//
//   d(left)/dt = -1 / max(k_out(sender), k_in(receiver)),   left = s when the latency is over
//
// A host that takes time to launch what its rank does (launch_seconds) goes ahead of the device from the begin of the
// step on: kernel i begins no earlier than i launches after it. What the device waits is a share of its own. A host
// that waits for an operation (host_waits) is no longer ahead when it has ended.
//
// While a collective is in flight, kernels beside it have 1 - collective_share of the multiprocessors; what they lose
// is a share of its own. Ranks of other data-, tensor- and context-parallel coordinates do the same at the same time.
// On a host nothing is in flight beside kernels: a collective takes the time of the core.

#include <array>
#include <string_view>
#include <vector>

#include "nanotron/tensor/work.hpp"

namespace nanotron::simulation {

/// What a rank's time goes into: kernels, what they take longer on the slowest GPU, what they lose beside collectives,
/// and waiting for launches of the host, for
/// the collectives of an axis or for messages of the pipeline.
enum class Share {
  gemm,
  attention,
  kernels,
  slowest,
  beside_collectives,
  launches,
  tensor_parallel,
  context_parallel,
  expert_parallel,
  data_parallel,
  host_memory,
  pipeline
};
inline constexpr std::size_t shares = 12;
std::string_view name_of(Share share);
using Seconds = std::array<double, shares>;

inline constexpr std::size_t links = 4;

/// One operation on a machine, alone.
struct OperationTime {
  double seconds = 0.0;  // of its bytes
  int level = 0;         // 0: inside a node, 1: between nodes, 2 and 3: to and from host memory
  double latency = 0.0;
  bool host_waits = false;  // who waits for it launches nothing before it has ended
};

/// What a rank of the pipeline does, and how long one of each takes: by row and by operation of the list.
struct RankWork {
  const WorkList* list = nullptr;
  std::vector<double> kernels;
  std::vector<double> launches;  // of the host, by row
  std::vector<OperationTime> operations;
};

struct TimelineRules {
  bool overlaps = true;                  // false: a host
  bool overlaps_tensor_parallel = true;  // false: collectives of tp are waited for at once
  bool overlaps_expert_parallel = true;  // false: those of ep
  double collective_share = 0.0;
  double slowest = 0.0;  // more time, as a share, that GEMMs and attention take on the GPU for which all others wait
  int tensor_parallel_pieces =
      1;                        // of a gather before a GEMM and a scatter after it: those but one are beside the GEMM
  double launch_seconds = 0.0;  // of the host for a kernel, a collective or a message; 0: it is never waited for
};

struct RankTimes {
  Seconds seconds{};  // their sum is the step
  double end = 0.0;   // of its own work; it then waits for the other ranks
};

/// By rank of the pipeline. Error(system_error) when a rank waits forever.
std::vector<RankTimes> simulate(const std::vector<RankWork>& pipeline, const TimelineRules& rules);

}  // namespace nanotron::simulation
