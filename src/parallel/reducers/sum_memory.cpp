#include "nanotron/parallel/reducers/sum_memory.hpp"

#include <algorithm>

#include "nanotron/deck/sum_shards.hpp"
#include "nanotron/kernels/reduction/gram.hpp"
#include "nanotron/kernels/reduction/scaled_half.hpp"

namespace nanotron::parallel {
namespace {

deck::Compression compression_of(const deck::ParallelConfig& p) {
  return p.dp * p.cp > 1 ? p.compression : deck::Compression::none;
}

// Sections are compressed in blocks of their own.
index_t half_blocks_of(const deck::ParallelConfig& p, const model::ParameterTable& table) {
  if (compression_of(p) != deck::Compression::fp16) return 0;
  return kernels::half_blocks(table.dense_section().flat.size()) + kernels::half_blocks(table.expert_section().flat.size());
}

template <class M>
OrderedMemory<M> take_ordered(const deck::Config& c, const model::ParameterTable& table, Arena& arena) {
  if (c.precision.reproducible == deck::Reproducible::run) return {};
  const index_t replicas = c.parallel.dp * c.parallel.cp, vectors = table.vectors.size();
  index_t unit = 0;
  const index_t sequences = std::max<index_t>(1, c.parallel.ep / c.parallel.cp);
  for (const model::Unit& u : table.units) {
    const index_t room = u.range.size() * (u.holders == nn::Holders::replicas ? 1 : sequences);
    unit = std::max(unit, replicas > 1 ? room : 0);
  }
  const model::Unit& words = table.units.front();
  const index_t tied = words.uses > 1 ? words.range.size() : 0;
  const bool in_turn = deck::sum_shards(c).batch < c.data.global_batch_size;
  constexpr auto kind = MemoryKind::gradients;
  return {.send = arena.take<M>(kind, unit),
          .receive = arena.take<M>(kind, unit),
          .vectors = arena.take<M>(kind, c.data.global_batch_size / c.parallel.dp * vectors),
          .vector_shard = arena.take<M>(kind, vectors),
          .vector_sum = arena.take<M>(kind, vectors),
          .gathered = arena.take<M>(kind, replicas > 1 ? replicas * vectors : 0),
          .head_sum = arena.take<M>(kind, tied / deck::shard_group_size(c.parallel)),
          .other_part = arena.take<M>(kind, in_turn ? tied : 0)};
}

std::vector<AdasumTensor> tensors_of(const deck::ParallelConfig& p, const model::ParameterTable& table) {
  if (p.dp == 1 || p.gradient_sum != deck::GradientRule::adasum) return {};
  return adasum_tensors(table);
}

}  // namespace

std::vector<model::Section> summed_sections(const deck::ParallelConfig& p, const model::ParameterTable& table) {
  std::vector<model::Section> sections;
  const index_t replicas = p.dp * p.cp;
  if (replicas > 1) sections.push_back(table.dense_section());
  if (replicas > p.ep && table.has_experts()) sections.push_back(table.expert_section());
  return sections;
}

LowRankPlan low_rank_plan_of(const deck::ParallelConfig& p, const model::ParameterTable& table) {
  if (compression_of(p) != deck::Compression::powersgd) return {};
  return low_rank_plan(table, p.powersgd_rank, summed_sections(p, table));
}

template <class M>
AdasumMemory<M>::AdasumMemory(const deck::ParallelConfig& p, const model::ParameterTable& table, Arena& arena)
    : tensors(tensors_of(p, table)) {
  const auto replicas = static_cast<int>(p.dp);
  const auto count = static_cast<index_t>(tensors.size());
  const index_t largest = std::max(table.dense_section().flat.size(), table.expert_section().flat.size());
  piece = arena.take<M>(MemoryKind::workspace, tensors.empty() ? 0 : piece_size(largest, replicas));
  received = arena.take<M>(MemoryKind::workspace, replicas * static_cast<index_t>(piece.size()));
  gram = arena.take<double>(MemoryKind::workspace, count * kernels::gram_pairs(replicas));
  coefficients = arena.take<double>(MemoryKind::workspace, count * replicas);
}

template <class M>
SumMemory<M>::SumMemory(const deck::Config& config, const model::ParameterTable& table, Arena& arena)
    : ordered(take_ordered<M>(config, table, arena)),
      rounded(arena.take<bf16>(MemoryKind::workspace,
                               compression_of(config.parallel) == deck::Compression::bf16 ? table.size : 0)),
      half(arena.take<fp16>(MemoryKind::workspace,
                            compression_of(config.parallel) == deck::Compression::fp16 ? table.size : 0)),
      largest(arena.take<M>(MemoryKind::workspace, half_blocks_of(config.parallel, table))),
      adasum(config.parallel, table, arena),
      low_rank(low_rank_plan_of(config.parallel, table)),
      error(arena.take<M>(MemoryKind::gradients, low_rank.errors)),
      p(arena.take<M>(MemoryKind::workspace, low_rank.p)),
      q(arena.take<M>(MemoryKind::gradients, low_rank.q)) {}

template struct AdasumMemory<double>;
template struct AdasumMemory<float>;
template struct SumMemory<double>;
template struct SumMemory<float>;

}  // namespace nanotron::parallel
