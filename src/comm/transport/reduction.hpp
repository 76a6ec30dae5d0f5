#pragma once

// Element-wise reduction on the host.

#include <cstddef>
#include <span>

#include "nanotron/comm/transport/channel.hpp"

namespace nanotron::comm {

/// result[i] <- ((s0[i] op s1[i]) op s2[i]) ... in the order of sources; bf16 and fp16 in float, rounded once.
/// result may be one of the sources. If copy is not null the same values are written there.
void reduce_elements(DataType type, ReduceOp op, std::span<const void* const> sources, std::size_t n, void* result,
                     void* copy);

}  // namespace nanotron::comm
