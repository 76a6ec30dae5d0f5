#pragma once

// What a gradient sum needs besides the gradients: taken from the arena with the model, before the sum is made.

#include "nanotron/deck/config.hpp"
#include "nanotron/model/parameter_table.hpp"

namespace nanotron::parallel {

template <class M>
struct SumMemory {
  SumMemory(const deck::ParallelConfig& parallel, const model::ParameterTable& table, Arena& arena)
      : rounded(arena.take<bf16>(MemoryKind::workspace,
                                 parallel.compression == deck::Compression::bf16 && parallel.dp * parallel.cp > 1 ? table.size : 0)) {}

  Vector<bf16> rounded;  // of RoundedSum
};

}  // namespace nanotron::parallel
