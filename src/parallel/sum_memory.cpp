#include "nanotron/parallel/sum_memory.hpp"

namespace nanotron::parallel {
namespace {

deck::Compression compression_of(const deck::ParallelConfig& p) {
  return p.dp * p.cp > 1 ? p.compression : deck::Compression::none;
}

LowRankPlan plan_of(const deck::ParallelConfig& p, const model::ParameterTable& table) {
  return compression_of(p) == deck::Compression::powersgd ? low_rank_plan(table, p.powersgd_rank) : LowRankPlan{};
}

}  // namespace

template <class M>
SumMemory<M>::SumMemory(const deck::ParallelConfig& parallel, const model::ParameterTable& table, Arena& arena)
    : rounded(arena.take<bf16>(MemoryKind::workspace,
                               compression_of(parallel) == deck::Compression::bf16 ? table.size : 0)),
      low_rank(plan_of(parallel, table)),
      error(arena.take<M>(MemoryKind::gradients, low_rank.errors)),
      p(arena.take<M>(MemoryKind::workspace, low_rank.p)),
      q(arena.take<M>(MemoryKind::gradients, low_rank.q)) {}

template struct SumMemory<double>;
template struct SumMemory<float>;

}  // namespace nanotron::parallel
