#pragma once

// Brings the weights that GEMMs read to where the layers read them, unit by unit, from the master weights of the ranks
// that share them. Sources are those of ParameterTable.

#include <memory>
#include <span>
#include <vector>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/step_traffic.hpp"
#include "nanotron/model/sharding.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::model {

/// The weights of a source are read; those of `next` will be read after it, if that is known.
struct SourceUse {
  index_t source;
  index_t next = no_unit;
};

/// One section; units are numbers of the table. Collective over the shard group.
template <class T>
class SectionWeights {
 public:
  virtual ~SectionWeights() = default;
  virtual void refresh() = 0;
  virtual void use(index_t unit, index_t next) = 0;
  virtual void finish() = 0;
  /// Elements that the ranks of the group gather between them in a step of these uses (source: a unit here).
  virtual index_t gathered_elements(std::span<const SourceUse> uses) const = 0;
};

/// Every function is collective over the shard groups.
template <class T>
class UnitWeights {
 public:
  /// By stage: weights of this rank alone; all of them gathered after an update; or each unit gathered before its use.
  /// device and the buffers' memory must outlive it.
  UnitWeights(const Sharding& sharding, const ParameterTable& table, const nn::ParameterBuffers<T>& buffers, Device& device);

  /// The master weights have changed. May return while weights are still on their way.
  void refresh();
  /// Before the weights of a source are read; those of `next` may be sent for.
  void use(const SourceUse& use);
  /// Before the buffers are read past the layers: nothing is on its way any more.
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
  std::vector<Part> parts_;
};

}  // namespace nanotron::model
