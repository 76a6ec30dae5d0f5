#pragma once

// Detects silent data corruption: compares hashes of weights and moments between ranks that must hold the same bits.
// A difference means faulty memory, processor or network on one of them, or a fault of the program.

#include <cstdint>

#include "nanotron/comm/group.hpp"

namespace nanotron::parallel {

class ReplicaCheck {
 public:
  /// replicas: ranks that hold the same bits; name: of this group, for messages ("data-parallel"). Groups and name must
  /// outlive it. every: steps between comparisons, 0: is_due() is always false.
  ReplicaCheck(comm::Group& replicas, const char* name, comm::Group& world, std::int64_t every)
      : replicas_(&replicas), name_(name), world_(&world), every_(every) {}

  bool has_replicas() const { return replicas_->size() > 1; }
  bool is_due(std::int64_t step) const { return every_ > 0 && step % every_ == 0; }

  /// hash: of what this rank stores after update `step`. Error(system_error) on every rank of the world when hashes
  /// differ within any group; it names the ranks outside the majority. Collective over the world.
  void require_equal(std::uint64_t hash, std::int64_t step);
  /// After that error: whether most ranks of this rank's group have another hash.
  bool is_outvoted() const { return is_outvoted_; }

 private:
  comm::Group* replicas_;
  const char* name_;
  comm::Group* world_;
  std::int64_t every_;
  bool is_outvoted_ = false;
  std::int64_t last_good_ = -1;  // last step at which all were equal; -1: none yet
};

}  // namespace nanotron::parallel
