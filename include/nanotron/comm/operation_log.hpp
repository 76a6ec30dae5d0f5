#pragma once

// The order of a planned rank's communication: its planned groups report each operation here instead of performing it.

#include <cstddef>
#include <cstdint>

namespace nanotron::comm {

/// The groups of a grid.
enum class GroupKind {
  world,  // of host values only
  data,
  shard,
  replicate,  // DataGroups of the data-parallel replica set
  expert_data,
  expert_shard,
  expert_replicate,  // those of the experts
  ep,
  ep_across,
  ep_within,  // parts of ep: ranks with the same place in each node, those of a node
  tp,
  cp,
  cp_all_to_all,
  cp_ring,  // parts of cp, where attention has several all-to-alls in a ring
  pp,
  embedding,
  to_host,  // this rank's copies to host memory and from it
  from_host
};

enum class Operation { all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, send, receive, copy };

/// bytes of the whole buffer of a rank: n for an all-reduce or broadcast, n x ranks for an all-gather or reduce-scatter
/// (n: one rank's part), the total to all ranks for an all-to-all, the message for a message.
struct PlannedOperation {
  Operation operation = Operation::all_reduce;
  GroupKind group = GroupKind::world;
  double bytes = 0.0;
  bool to_next = false;  // a message: to or from the next rank of the ring
  int lane = 0;          // a message: as start_send
  bool operator==(const PlannedOperation&) const = default;
};

class OperationLog {
 public:
  virtual ~OperationLog() = default;
  /// Called when an operation starts; returns the ticket for its wait. A blocking one is waited for at once.
  virtual std::uint64_t started(const PlannedOperation& operation) = 0;
  virtual void waited(std::uint64_t ticket) = 0;
};

/// Where a planned group reports its operations; null: nowhere.
struct PlannedLog {
  OperationLog* log = nullptr;
  GroupKind group = GroupKind::world;
};

}  // namespace nanotron::comm
