#pragma once

// Ranks that compute the same thing from the same bits: when what they hold differs, memory, processor or network
// of one of them is faulty, or the program is.

#include <cstdint>

#include "nanotron/comm/group.hpp"

namespace nanotron::parallel {

class ReplicaCheck {
 public:
  /// replicas: the group, "data-parallel" or another name. Both must outlive it. every: steps from one comparison to
  /// the next, 0: none.
  ReplicaCheck(comm::Group& replicas, const char* name, comm::Group& world, std::int64_t every)
      : replicas_(&replicas), name_(name), world_(&world), every_(every) {}

  bool has_replicas() const { return replicas_->size() > 1; }
  bool is_due(std::int64_t step) const { return every_ > 0 && step % every_ == 0; }

  /// hash: of what this rank holds behind update `step`. Error(system_error) on every rank of the world when
  /// replicas differ anywhere; it names those that are not of the majority. Collective over the world.
  void require_equal(std::uint64_t hash, std::int64_t step);

 private:
  comm::Group* replicas_;
  const char* name_;
  comm::Group* world_;
  std::int64_t every_;
  std::int64_t last_good_ = -1;  // step; -1: none yet
};

}  // namespace nanotron::parallel
