#pragma once

// The buffers of a rank as logical tensors of a checkpoint.

#include <vector>

#include "nanotron/io/checkpoint/checkpoint.hpp"
#include "nanotron/model/parameters/parameter_table.hpp"
#include "nanotron/nn/parameters/parameter.hpp"
#include "nanotron/optim/moment.hpp"

namespace nanotron::trainer {

/// Which part of each tensor a rank reads or writes.
struct Part {
  enum class Of {
    held,   // the local shard (ParameterSpec::local): for reading
    owned,  // what it owns of it (ParameterSpec::owned), so that the group covers each element once: for writing
  } of = Of::held;
  /// `replicas` ranks have the same values: each takes some of the layers and rows, in turn from tensor to
  /// tensor.
  int replica = 0, replicas = 1;

  static const Part held;
};
inline constexpr Part Part::held{};

/// Bytes of a tensor, or of a layer, below which replicas do not share it.
inline constexpr index_t shared_bytes = index_t{4} << 20;

using Parts = comm::PerReplicaSet<Part>;

/// The tensors of one buffer (parameters or a moment). data: its first element; layout: its layout. S is double, float
/// or bf16.
template <class S>
std::vector<io::StateTensor> state_tensors(const model::ParameterTable& table, const nn::BufferLayout& layout, S* data,
                                           const Parts& part);

/// The same for these tensors, such as those of a moment. layout: the layout of the moment, or a part of it.
template <class S>
std::vector<io::StateTensor> moment_tensors(const std::vector<nn::ParameterSpec>& specs, const nn::BufferLayout& layout,
                                            S* data, const Parts& part);

}  // namespace nanotron::trainer
