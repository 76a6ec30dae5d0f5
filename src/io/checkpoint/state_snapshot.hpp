#pragma once

// A copy of the training state that is made while the next step computes its gradients: parameters and moments do not
// change before the update at its end (Mohan, Phanishayee and Chidambaram 2021, "CheckFreq", section 4.1).

#include <cstddef>
#include <memory>
#include <vector>

#include "nanotron/io/checkpoint/checkpoint.hpp"

namespace nanotron::io {

/// A part in memory of the device and, packed, on the host.
struct PartCopy {
  StatePart from, to;
  ScalarType type;
};

/// Copies of parts in one allocation on the host (page-locked in a build for GPUs), made beside the work of the device.
/// Implemented in gpu/ and host/.
class HostCopies {
 public:
  HostCopies();
  ~HostCopies();  // waits
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  /// Kept until more is asked for. Nothing may be under way.
  std::byte* memory(std::size_t bytes);
  /// Begins when all queued work is done. The parts must not change before wait(). By the thread of the run.
  void start(std::vector<PartCopy> copies);
  /// Returns when they are made; without copies at once. By the thread of the run.
  void wait();

 private:
  struct Work;
  std::unique_ptr<Work> work_;
};

/// The tensors of CheckpointContents as they are at begin().
class StateSnapshot {
 public:
  /// Takes the memory of what begin() copies.
  void reserve(const CheckpointContents& contents);
  /// Returns when what a step changes before its update is copied (compression); the rest must not change before
  /// wait(). An earlier snapshot must not be in use.
  void begin(const CheckpointContents& contents);
  void wait() { copies_.wait(); }

  /// Their tensors are packed in memory of the host, with values after wait().
  const CheckpointContents& contents() const { return contents_; }

 private:
  void take_tensors(const CheckpointContents& contents);
  template <class F>
  void for_each_steady_part(const F& f);  // of what does not change before an update
  std::byte* memory();
  std::vector<StateTensor> parameters_, compression_;
  std::vector<StateGroup> moments_;
  std::vector<DataFile> data_;
  CheckpointContents contents_;
  HostCopies copies_;
};

}  // namespace nanotron::io
