#pragma once

// Brings the weights that products read to where the layers read them, unit by unit, from the master weights of
// the ranks that share them.

#include <memory>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/model/sharding.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::model {

/// Every function is collective over the shard group.
template <class T>
class UnitWeights {
 public:
  virtual ~UnitWeights() = default;

  /// The master weights have changed. May return while weights are still on their way.
  virtual void refresh() = 0;
  /// Before the weights of a unit are read. Those of `next` will be read behind it: they may set out now.
  virtual void use(index_t unit, index_t next) = 0;
  /// Before the buffers are read past the layers: nothing is on its way any more.
  virtual void settle() = 0;
};

/// As `next`: nothing is known of what follows.
inline constexpr index_t no_unit = -1;

/// The strategy of a stage: weights of this rank alone; all of them gathered behind an update; or each unit gathered
/// before its use. device and the buffers' memory must outlive it.
template <class T>
std::unique_ptr<UnitWeights<T>> make_unit_weights(const Sharding& sharding, const ParameterTable& table,
                                                  const nn::ParameterBuffers<T>& buffers, Device& device);

}  // namespace nanotron::model
