#pragma once

// Casts and all-gathers the weights that GEMMs read, unit by unit, from the master weights of the shard group (ZeRO).
// Sources are those of ParameterTable.

#include <memory>
#include <span>
#include <vector>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/watch/step_traffic.hpp"
#include "nanotron/model/parameters/sharding.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::model {

/// The weights of `source` are read now; those of `next` after them, if that is known.
struct SourceUse {
  index_t source;
  index_t next = no_unit;
};

/// What is not queued yet of an update of the master weights (and of what follows from them): it goes beside the next
/// forward, source by source.
class RestOfUpdate {
 public:
  virtual ~RestOfUpdate() = default;
  /// Queues that of all sources up to this one, if it is not.
  virtual void queue(index_t source) = 0;
  /// Queues all of it. What is queued from now on sees everything that the update writes.
  virtual void finish() = 0;
};

/// Weights of one section; units are numbers of the table. Collective over the shard group.
template <class T>
class SectionWeights {
 public:
  virtual ~SectionWeights() = default;
  /// Casts this rank's master weights where they are cast once for all uses.
  virtual void round() = 0;
  /// Starts the gathers that follow a change of the weights; or, where they change until they are used, lets use()
  /// start them.
  virtual void gather() = 0;
  virtual void gather_in_use() { gather(); }
  virtual void use(index_t unit, index_t next) = 0;
  /// Units that are gathered per use are gathered again.
  virtual void forget() {}
  virtual void finish() = 0;
  /// Elements of all units gathered in a step with these uses (source: a unit number here).
  virtual index_t gathered_elements(std::span<const SourceUse> uses) const = 0;
};

/// Every function is collective over the shard groups.
template <class T>
class UnitWeights {
 public:
  /// One rank per shard group: a local cast, of each layer before its use if layers share a buffer. ZeRO-1 and ZeRO-2:
  /// all units are gathered after an update. ZeRO-3: each unit is gathered before its use. device and the buffers'
  /// memory must outlive it.
  UnitWeights(const Sharding& sharding, const ParameterTable& table, const nn::ParameterBuffers<T>& buffers,
              Device& device);

  /// Call it after the master weights changed. All-gathers may still be running on return.
  void refresh();
  /// The bf16 weights that an update writes along with the master weights, the whole flat space; empty if they are not
  /// bf16, or are cast at each use. No gather may be running: the weights have been used, or finish() called.
  const Vector<bf16>& copy() const { return copy_; }
  /// refresh() after an update that wrote copy(). Null or the rest of this update, until finish() or the next refresh:
  /// the weights of a source are updated before use().
  void refresh_after_update(RestOfUpdate* rest = nullptr);
  /// Queues the rest of an update up to this source; nothing is gathered. use() does it too.
  void update(index_t source);
  /// Call it before the weights of a source are read. May start the all-gather of `next`.
  void use(const SourceUse& use);
  /// Where units are gathered per use, the next use of every unit gathers it again. Without this call a unit
  /// that is still gathered is not gathered again, so that two equal computations communicate differently.
  void forget();
  /// The same of all units, also where they are gathered once after an update.
  void gather_in_use();
  /// Waits for all gathers, and for the rest of an update. Call it before anything but the layers reads the buffers.
  void finish();
  comm::StepTraffic traffic(std::span<const SourceUse> uses) const;

 private:
  struct Part {
    Section section;
    int ranks;
    std::unique_ptr<SectionWeights<T>> weights;
  };
  SourceUse in(const Section& section, const SourceUse& use) const;

  ParameterTable table_;
  Vector<bf16> copy_;
  std::vector<Part> parts_;
  bool gathers_ = false;  // whether use() may start a gather of the next source
  bool casts_ = false;    // whether refresh() casts weights
  RestOfUpdate* rest_ = nullptr;
};

}  // namespace nanotron::model
