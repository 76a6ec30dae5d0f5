#include "matrix_layout.hpp"

#include <algorithm>
#include <numeric>

#include "nanotron/optim/optimizer.hpp"

namespace nanotron::optim {
namespace {

constexpr index_t alignment = 64;  // elements: every GEMM operand starts on a cache line

MatrixShard matrix_shard(const nn::ParameterSpec& spec, index_t unit_begin) {
  const bool by_columns = spec.partition == nn::Partition::row_parallel;  // row-parallel shards are never replicated
  const index_t skip = by_columns ? 0 : spec.owned.begin - spec.local.begin;
  return {.offset = spec.offset - unit_begin + skip * spec.local_columns(),
          .rows = by_columns ? spec.rows : spec.owned.size(),
          .columns = spec.local_columns(),
          .row = by_columns ? 0 : spec.owned.begin,
          .column = by_columns ? spec.owned.begin : 0};
}

// Longest processing time first: each matrix to the place with the least work so far (Graham 1969).
void deal_out(std::vector<HiddenMatrix>& matrices, int places, MatrixWork work_of) {
  const auto of = [&](std::size_t i) { return work_of(matrices[i].rows, matrices[i].columns); };
  std::vector<std::size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{}, of);
  std::vector<double> work(static_cast<std::size_t>(places), 0.0);
  for (const std::size_t i : order) {
    const auto least = std::ranges::min_element(work);
    *least += of(i);
    matrices[i].place = static_cast<int>(least - work.begin());
  }
}

}  // namespace

bool is_matrix_of(comm::ReplicaSet replicas, const nn::ParameterSpec& spec) {
  return covers(Covers::hidden_matrices, spec) && spec.replicas == replicas && spec.local_layers() > 0;
}

MatrixOwner MatrixLayout::owner(const HiddenMatrix& matrix, std::size_t layer) const {
  const std::size_t ranks = static_cast<std::size_t>(tp_size) * static_cast<std::size_t>(shards);
  const std::size_t turn = ranks > matrices.size() ? matrices.size() : 1;
  const auto rank = static_cast<int>((static_cast<std::size_t>(matrix.place) + layer * turn) % ranks);
  return {rank % tp_size, rank / tp_size};
}

MatrixLayout matrix_layout(const deck::ModelConfig& model, model::TableLayout of_table, comm::ReplicaSet replicas,
                           int shards, MatrixWork work) {
  MatrixLayout layout;
  layout.tp_size = of_table.tensor_ranks_of(replicas), layout.shards = shards;
  of_table.layers.clear();
  for (int rank = 0; rank < layout.tp_size; ++rank) {
    of_table.tp_rank = rank;
    const model::ParameterTable table = model::make_parameter_table(model, of_table);
    const model::Section& section = table.section(replicas);
    const Range unit = table.unit(section.first_layer_unit).range;
    layout.unit_size = std::max(layout.unit_size, unit.size());
    std::size_t i = 0;
    for (const nn::ParameterSpec& spec : table.specs) {
      if (!is_matrix_of(replicas, spec)) continue;
      if (rank == 0) {
        layout.matrices.push_back({.name = spec.name,
                                   .rows = spec.rows,
                                   .columns = spec.columns,
                                   .fan_in_ratio = spec.fan_in_ratio,
                                   .at = layout.whole_size,
                                   .shards = {}});
        layout.whole_size += (spec.rows * spec.columns + alignment - 1) / alignment * alignment;
      }
      layout.matrices[i++].shards.push_back(matrix_shard(spec, unit.begin));
    }
  }
  deal_out(layout.matrices, layout.tp_size * layout.shards, work);
  return layout;
}

}  // namespace nanotron::optim
