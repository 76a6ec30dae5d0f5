#include "matrix_optimizer.hpp"

#include <algorithm>
#include <array>

#include "nanotron/base/types.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/deck/later_tokens.hpp"
#include "nanotron/deck/layer_kinds.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/gemm/gemm.hpp"
#include "nanotron/kernels/optim/muon.hpp"
#include "optim/optimizers.hpp"

namespace nanotron::optim {
namespace {

std::size_t count(index_t n) { return static_cast<std::size_t>(n); }

// The units of the section's layers, in the flat space; empty, at the end of the section, if it has none.
Range layers_range(const model::ParameterTable& table, const model::Section& section) {
  Range range{section.flat.end, section.flat.end};
  for (const index_t unit : section.unit_of_layer) {
    if (unit == model::no_unit) continue;
    const Range& of_layer = table.unit(unit).range;
    range = {std::min(range.begin, of_layer.begin), of_layer.end};
  }
  return range;
}

// Ranges of the flat space inside the layers' units, and outside of them.
struct Split {
  std::vector<Range> inside, outside;
};

Split split_of(const model::ParameterTable& table) {
  Split split;
  for (const model::Section& section : table.sections) {
    const Range layers = layers_range(table, section);
    split.inside.push_back(layers);
    split.outside.push_back({section.flat.begin, layers.begin});
    split.outside.push_back({layers.end, section.flat.end});
  }
  return split;
}

// The layouts, with moments of these ranges only.
nn::ParameterLayouts with_moments(nn::ParameterLayouts layouts, const std::vector<Range>& ranges) {
  std::vector<Range> kept;
  for (const Range& range : ranges) {
    for (const nn::BufferLayout::Part& p : layouts.moments.within(range)) kept.push_back(p.range);
  }
  layouts.moments = nn::BufferLayout::packed(kept);
  return layouts;
}

// Which of the tensors of local_shards(alike, section) decay, as the table says.
std::vector<bool> decaying(const model::ParameterTable& alike, const model::Section& section,
                           const model::ParameterTable& table) {
  std::vector<bool> decays;
  for (const nn::ParameterSpec& spec : alike.specs) {
    if (is_matrix_of(section.replicas, spec)) decays.push_back(table[spec.name].decays);
  }
  return decays;
}

std::vector<MatrixShard> local_shards(const model::ParameterTable& table, const model::Section& section) {
  std::vector<MatrixShard> shards;
  for (const nn::ParameterSpec& spec : table.specs) {
    if (!is_matrix_of(section.replicas, spec)) continue;
    const bool by_columns = spec.partition == nn::Partition::row_parallel;
    shards.push_back({.offset = spec.offset - layers_range(table, section).begin,
                      .rows = spec.local_rows(),
                      .columns = spec.local_columns(),
                      .row = by_columns ? 0 : spec.local.begin,
                      .column = by_columns ? spec.local.begin : 0});
  }
  return shards;
}

}  // namespace

template <class M>
MatrixOptimizer<M>::MatrixOptimizer(const char* region, MatrixWork work, const deck::Config& config,
                                    const OptimizerSetup& setup, Arena& arena)
    : region_(region),
      work_(work),
      config_(config.optimizer),
      tp_(setup.tp),
      layouts_(with_moments(setup.layouts, split_of(setup.table).inside)),
      stacks_(stacks_of(config, setup)),
      adamw_(make_adamw<M>(config,
                           {.table = setup.table,
                            .layouts = with_moments(setup.layouts, split_of(setup.table).outside),
                            .sharding = setup.sharding,
                            .host_bucket = setup.host_bucket},
                           arena, Covers::others)),
      gathered_(arena.take<M>(MemoryKind::workspace, max_gathered())),
      whole_(arena.take<M>(MemoryKind::workspace, most(&MatrixLayout::whole_size))),
      gemm_workspace_(arena.take<std::byte>(MemoryKind::workspace, gemm_bytes(config, arena))) {}

template <class M>
index_t MatrixOptimizer<M>::most(index_t MatrixLayout::*of) const {
  index_t most = 0;
  for (const Stack& stack : stacks_) most = std::max(most, stack.layout.*of);
  return most;
}

template <class M>
index_t MatrixOptimizer<M>::max_gathered() const {
  index_t most = 0;
  for (const Stack& stack : stacks_) most = std::max(most, stack.tp->size() * stack.layout.unit_size);
  return most;
}

// Of products of a matrix (m, n) with square ones, and of these. A GPU's device has what all of its GEMMs need.
template <class M>
index_t MatrixOptimizer<M>::gemm_bytes(const deck::Config& config, const Arena& arena) const {
  if (arena.processor() == Processor::gpu) return 0;
  const GemmMode mode =
      config.precision.reproducible == deck::Reproducible::layout ? GemmMode::fixed_order : GemmMode::library;
  std::size_t bytes = 0;
  for_each_owned([&](const Place& at) {
    const index_t m = matrix(at).rows, n = matrix(at).columns;
    for (const auto& [rows, columns, k] : {std::array{m, n, m}, {m, n, n}, {m, m, n}, {n, n, m}, {m, m, m}, {n, n, n}})
      bytes = std::max(bytes, kernels::gemm_workspace_bytes<M>(mode, Processor::cpu, rows, columns, k));
  });
  return static_cast<index_t>(bytes);
}

template <class M>
std::vector<typename MatrixOptimizer<M>::Stack> MatrixOptimizer<M>::stacks_of(const deck::Config& config,
                                                                              const OptimizerSetup& setup) const {
  std::vector<Stack> stacks;
  const deck::LayerKinds kinds(config.model);
  for (const model::Section& section : setup.table.sections) {
    for (const bool is_routed : {false, true}) {
      std::vector<index_t> layers;
      for (index_t l = 0; l < setup.table.layers; ++l) {
        if (section.unit_of_layer[count(l)] != model::no_unit &&
            kinds[setup.table.layer_numbers[count(l)]].is_routed == is_routed)
          layers.push_back(l);
      }
      if (layers.empty()) continue;
      const auto model = deck::with_routed_layers(config.model, is_routed ? "all" : "none");
      stacks.push_back(stack_of(model, setup, section, layers));
    }
  }
  return stacks;
}

// model: of layers of one kind, whose units are alike.
template <class M>
typename MatrixOptimizer<M>::Stack MatrixOptimizer<M>::stack_of(const deck::ModelConfig& model,
                                                                const OptimizerSetup& setup,
                                                                const model::Section& section,
                                                                const std::vector<index_t>& local_layers) const {
  model::TableLayout all_layers = setup.table.layout;
  all_layers.layers.clear();
  const model::ParameterTable alike = model::make_parameter_table(model, all_layers);
  const std::vector<bool> decays = decaying(alike, section, setup.table);
  comm::Group* const shards = setup.sharding.of(section.replicas).group;
  Stack stack{.layout = matrix_layout(model, all_layers, section.replicas, shards->size(), work_),
              .local = local_shards(alike, alike.section(section.replicas)),
              .tp = all_layers.tensor_ranks_of(section.replicas) == 1 ? &comm::alone() : tp_,
              .shards = shards,
              .unit_size = 0,
              .layers = std::vector<std::vector<Piece>>(local_layers.size()),
              .numbers = {}};
  for (std::size_t layer = 0; layer < local_layers.size(); ++layer) {
    const model::Unit& unit = setup.table.unit(section.unit_of_layer[count(local_layers[layer])]);
    stack.unit_size = unit.range.size();
    stack.numbers.push_back(setup.table.layer_numbers[count(local_layers[layer])]);
    for (std::size_t m = 0; m < stack.local.size(); ++m) {
      const MatrixShard& s = stack.local[m];
      const index_t begin = unit.range.begin + s.offset;
      for (UpdatePart& part : update_parts(Range{begin, begin + s.rows * s.columns}, layouts_)) {
        part.decays = decays[m];
        stack.layers[layer].push_back({part, m, part.range.begin - unit.range.begin, part.range.begin - begin});
      }
    }
  }
  return stack;
}

template <class M>
bool MatrixOptimizer<M>::owns(const Place& at) const {
  const Stack& stack = stacks_[at.stack];
  const MatrixOwner owner = stack.layout.owner(matrix(at), at.layer);
  return owner.tp == stack.tp->rank() && owner.shard == stack.shards->rank();
}

template <class M>
void MatrixOptimizer<M>::update(Device& device, const UpdatedWeights<M>& weights, Vector<const M> gradient,
                                double learning_rate, Vector<const kernels::UpdateScalars> scalars) {
  adamw_->set_steps(this->steps());
  adamw_->update(device, weights, gradient, learning_rate, scalars);
  adamw_->continue_update(device, all_sources);
  const Region region(device.timers(), region_);
  for (std::size_t s = 0; s < stacks_.size(); ++s) {
    const Stack& stack = stacks_[s];
    M* const unit = gathered_.data() + stack.tp->rank() * stack.layout.unit_size;
    for (std::size_t layer = 0; layer < stack.layers.size(); ++layer) {
      for (const auto& [part, matrix, in_unit, in_shard] : stack.layers[layer])
        prepare(device, part, Vector<const M>(gradient.data() + part.gradient, part.size()),
                Vector<M>(unit + in_unit, part.size()), scalars);
      gather(device, stack);
      compute_owned(device, s, layer, scalars);
      if (!descends() && !device.is_planning()) continue;
      broadcast(device, stack, layer);
      for (const auto& [part, matrix, in_unit, in_shard] : stack.layers[layer]) {
        const HiddenMatrix& m = stack.layout.matrices[matrix];
        const MatrixShard& shard = stack.local[matrix];
        const MatrixRef<const M> update =
            MatrixRef<M>(whole(m)).row_block(shard.row, shard.rows).column_block(shard.column, shard.columns);
        const Descent d = descent(m, part.decays, learning_rate);
        kernels::descend<M>(device, weights.master_of(part), update, in_shard, d.keep, d.rate, scalars,
                            weights.copy_of(part));
      }
    }
  }
}

template <class M>
void MatrixOptimizer<M>::gather(Device& device, const Stack& stack) {
  const Region region(device.timers(), "gather matrices");
  M* const unit = gathered_.data() + stack.tp->rank() * stack.layout.unit_size;
  if (stack.shards->size() > 1) {
    const index_t piece = stack.unit_size / stack.shards->size();
    comm::all_gather<M>(*stack.shards, unit + stack.shards->rank() * piece, count(piece), unit, device.stream());
  }
  if (stack.tp->size() > 1)
    comm::all_gather<M>(*stack.tp, unit, count(stack.layout.unit_size), gathered_.data(), device.stream());
}

template <class M>
void MatrixOptimizer<M>::compute_owned(Device& device, std::size_t s, std::size_t layer,
                                       Vector<const kernels::UpdateScalars> scalars) {
  const MatrixLayout& layout = stacks_[s].layout;
  const Vector<std::byte> of_device = device.gemm_workspace();
  if (gemm_workspace_.size() > of_device.size()) device.set_gemm_workspace(gemm_workspace_);
  for (std::size_t i = 0; i < layout.matrices.size(); ++i) {
    if (!owns({s, layer, i})) continue;
    const HiddenMatrix& m = layout.matrices[i];
    for (std::size_t rank = 0; rank < m.shards.size(); ++rank) {
      const MatrixShard& shard = m.shards[rank];
      const M* const from = gathered_.data() + static_cast<index_t>(rank) * layout.unit_size + shard.offset;
      kernels::copy_matrix<M>(
          device, MatrixRef<const M>(from, shard.rows, shard.columns),
          MatrixRef<M>(whole(m)).row_block(shard.row, shard.rows).column_block(shard.column, shard.columns));
    }
    compute(device, {s, layer, i}, whole(m), scalars);
  }
  device.set_gemm_workspace(of_device);
}

template <class M>
void MatrixOptimizer<M>::broadcast(Device& device, const Stack& stack, std::size_t layer) {
  const Region region(device.timers(), "broadcast updates");
  for (const HiddenMatrix& m : stack.layout.matrices) {
    const std::size_t size = count(m.rows * m.columns);
    const MatrixOwner owner = stack.layout.owner(m, layer);
    if (stack.tp->size() > 1 && owner.shard == stack.shards->rank())
      comm::broadcast<M>(*stack.tp, whole(m).data(), size, owner.tp, device.stream());
    if (stack.shards->size() > 1)
      comm::broadcast<M>(*stack.shards, whole(m).data(), size, owner.shard, device.stream());
  }
}

template <class M>
comm::StepTraffic MatrixOptimizer<M>::traffic() const {
  comm::StepTraffic sum;
  const auto bytes = [](index_t elements) { return elements * static_cast<index_t>(sizeof(M)); };
  for (const Stack& stack : stacks_) {
    const int tp = stack.tp->size(), shards = stack.shards->size();
    for (std::size_t layer = 0; layer < stack.layers.size(); ++layer) {
      sum.tensor_parallel += comm::all_gather_bytes(bytes(stack.layout.unit_size), tp);
      sum.data_parallel += comm::all_gather_bytes(bytes(stack.unit_size / shards), shards);
      for (const HiddenMatrix& m : stack.layout.matrices) {
        if (stack.layout.owner(m, layer).shard == stack.shards->rank())
          sum.tensor_parallel += comm::broadcast_bytes(bytes(m.rows * m.columns), tp);
        sum.data_parallel += comm::broadcast_bytes(bytes(m.rows * m.columns), shards);
      }
    }
  }
  return sum;
}

void check_matrices(const deck::Config& c, deck::Findings& f, const std::string& who) {
  if (deck::appended_layers(c.model) == 0 || !f.is_valid({"optimizer.name"})) return;
  f.error({"optimizer.name"},
          who + " needs layers with the same matrices, and layers that predict later tokens have one more",
          "name = 'adamw'");
}

NANOTRON_INSTANTIATE_MASTER_CLASS(MatrixOptimizer)

}  // namespace nanotron::optim
