// Muon (Jordan et al. 2024) for the 2-D parameters of the layers, AdamW for 1-D parameters, embedding and head. With O
// the orthogonalised momentum of a whole logical matrix (kernels/optim/muon.hpp), however it is sharded:
//
//   p = (1 - learning_rate weight_decay) p - learning_rate 0.2 sqrt(max(rows, columns)) O
//
// (the second term times model::muon_rate_factor, which is 1 without mup). The factor 0.2 sqrt(...) brings the root
// mean square of an update to that of AdamW, about 0.2, so that learning rate and weight decay carry over (Liu et al.
// 2025, "Muon is scalable for LLM training", section 2.2).
//
// The update runs unit by unit: a layer without its experts, or the experts of a layer, which other ranks store.
//
//   look_ahead       each rank: Nesterov momentum of its elements
//   gather           all-gather of the unit over the shard group, then over the tensor-parallel group
//   orthogonalise    one of the t S ranks assembles and orthogonalises each matrix, and broadcasts it
//   descend          each rank: its elements
//
// With t tensor-parallel ranks, S ranks in the shard group, U elements in a unit on a rank and W in its whole matrices,
// a rank needs t U + W elements and the workspace of one matrix. It passes to collectives per layer:
//
//   t > 1   U, and the matrices that its shard rank orthogonalises        S > 1   U / S + W

#include <algorithm>
#include <cmath>
#include <memory>

#include "muon_layout.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/later_tokens.hpp"
#include "nanotron/deck/layer_kinds.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/optim/muon.hpp"
#include "nanotron/model/parameters/parametrization.hpp"
#include "nanotron/tensor/layout_checks.hpp"
#include "optim/optimizers.hpp"

namespace nanotron::optim {
namespace {

constexpr double update_size = 0.2;  // root mean square, as of AdamW's update

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

template <class M>
class Muon : public Optimizer<M> {
 public:
  Muon(const deck::Config& config, const OptimizerSetup& setup, Arena& arena);

  void update(Device& device, const UpdatedWeights<M>& weights, Vector<const M> gradient, double learning_rate,
              Vector<const kernels::UpdateScalars> scalars) override;
  std::string name() const override { return "muon"; }
  std::vector<Moment<M>> moments() const override;
  comm::StepTraffic traffic() const override;

 private:
  /// A part of one matrix, and its offsets in the unit and in this rank's shard of the matrix.
  struct Piece {
    UpdatePart part;
    std::size_t matrix = 0;
    index_t in_unit = 0, in_shard = 0;
  };
  /// The units of one section, which the same ranks store, that have the same matrices.
  struct Stack {
    MuonLayout layout;
    std::vector<MatrixShard> local;  // per matrix: the shard that this rank computes with
    comm::Group* shards;
    index_t unit_size = 0;                   // on this rank
    std::vector<std::vector<Piece>> layers;  // per layer
  };
  Stack stack_of(const deck::ModelConfig& model, const OptimizerSetup& setup, const model::Section& section,
                 const std::vector<index_t>& units) const;
  std::vector<Stack> stacks_of(const deck::Config& config, const OptimizerSetup& setup) const;
  index_t most(index_t MuonLayout::*of) const;

  void look_ahead(Device& device, const Stack& stack, std::size_t layer, Vector<const M> gradient,
                  Vector<const kernels::UpdateScalars> scalars);
  void gather(Device& device, const Stack& stack);
  void orthogonalise(Device& device, const Stack& stack);
  void descend(Device& device, const Stack& stack, std::size_t layer, const UpdatedWeights<M>& weights,
               double learning_rate, Vector<const kernels::UpdateScalars> scalars);
  Matrix<M> whole(const HiddenMatrix& m) const { return Matrix<M>(whole_.data() + m.at, m.rows, m.columns); }

  deck::OptimizerConfig config_;
  comm::Group* tp_;
  nn::ParameterLayouts layouts_;  // moments: the momentum
  std::vector<Stack> stacks_;
  std::unique_ptr<Optimizer<M>> adamw_;
  Vector<M> momentum_;
  Vector<M> gathered_;  // units of all tensor-parallel ranks; shared by the stacks, as are those below
  Vector<M> whole_;
  Vector<M> workspace_;
};

template <class M>
Muon<M>::Muon(const deck::Config& config, const OptimizerSetup& setup, Arena& arena)
    : config_(config.optimizer),
      tp_(setup.tp),
      layouts_(with_moments(setup.layouts, split_of(setup.table).inside)),
      stacks_(stacks_of(config, setup)),
      adamw_(make_adamw<M>(config,
                           {.table = setup.table,
                            .layouts = with_moments(setup.layouts, split_of(setup.table).outside),
                            .sharding = setup.sharding},
                           arena, Covers::others)),
      momentum_(arena.take<M>(MemoryKind::optimizer, layouts_.moments.size())),
      gathered_(arena.take<M>(MemoryKind::workspace, tp_->size() * most(&MuonLayout::unit_size))),
      whole_(arena.take<M>(MemoryKind::workspace, most(&MuonLayout::whole_size))),
      workspace_(arena.take<M>(MemoryKind::workspace, most(&MuonLayout::workspace))) {}

template <class M>
index_t Muon<M>::most(index_t MuonLayout::*of) const {
  index_t most = 0;
  for (const Stack& stack : stacks_) most = std::max(most, stack.layout.*of);
  return most;
}

template <class M>
std::vector<typename Muon<M>::Stack> Muon<M>::stacks_of(const deck::Config& config, const OptimizerSetup& setup) const {
  std::vector<Stack> stacks;
  const deck::LayerKinds kinds(config.model);
  for (const model::Section& section : setup.table.sections) {
    for (const bool is_routed : {false, true}) {
      std::vector<index_t> units;
      for (index_t l = 0; l < setup.table.layers; ++l) {
        const index_t unit = section.unit_of_layer[count(l)];
        if (unit != model::no_unit && kinds[setup.table.layer_numbers[count(l)]].is_routed == is_routed)
          units.push_back(unit);
      }
      if (units.empty()) continue;
      const auto model = deck::with_routed_layers(config.model, is_routed ? "all" : "none");
      stacks.push_back(stack_of(model, setup, section, units));
    }
  }
  return stacks;
}

// model: of layers of one kind, whose units are alike.
template <class M>
typename Muon<M>::Stack Muon<M>::stack_of(const deck::ModelConfig& model, const OptimizerSetup& setup,
                                          const model::Section& section, const std::vector<index_t>& units) const {
  model::TableLayout all_layers = setup.table.layout;
  all_layers.layers.clear();
  const model::ParameterTable alike = model::make_parameter_table(model, all_layers);
  const std::vector<bool> decays = decaying(alike, section, setup.table);
  Stack stack{.layout = muon_layout(model, all_layers, section.replicas),
              .local = local_shards(alike, alike.section(section.replicas)),
              .shards = setup.sharding.of(section.replicas).group,
              .unit_size = setup.table.unit(units.front()).range.size(),
              .layers = std::vector<std::vector<Piece>>(units.size())};
  for (std::size_t layer = 0; layer < units.size(); ++layer) {
    const index_t unit = setup.table.unit(units[layer]).range.begin;
    for (std::size_t m = 0; m < stack.local.size(); ++m) {
      const MatrixShard& s = stack.local[m];
      const index_t begin = unit + s.offset;
      for (UpdatePart& part : update_parts(Range{begin, begin + s.rows * s.columns}, layouts_)) {
        part.decays = decays[m];
        stack.layers[layer].push_back({part, m, part.range.begin - unit, part.range.begin - begin});
      }
    }
  }
  return stack;
}

template <class M>
void Muon<M>::update(Device& device, const UpdatedWeights<M>& weights, Vector<const M> gradient, double learning_rate,
                     Vector<const kernels::UpdateScalars> scalars) {
  adamw_->set_steps(this->steps());
  adamw_->update(device, weights, gradient, learning_rate, scalars);
  const Region region(device.timers(), "muon");
  for (const Stack& stack : stacks_) {
    for (std::size_t layer = 0; layer < stack.layers.size(); ++layer) {
      look_ahead(device, stack, layer, gradient, scalars);
      gather(device, stack);
      orthogonalise(device, stack);
      descend(device, stack, layer, weights, learning_rate, scalars);
    }
  }
}

template <class M>
void Muon<M>::look_ahead(Device& device, const Stack& stack, std::size_t layer, Vector<const M> gradient,
                         Vector<const kernels::UpdateScalars> scalars) {
  M* const unit = gathered_.data() + tp_->rank() * stack.layout.unit_size;
  for (const auto& [part, matrix, in_unit, in_shard] : stack.layers[layer]) {
    kernels::nesterov<M>(device, Vector<const M>(gradient.data() + part.gradient, part.size()),
                         Vector<M>(momentum_.data() + part.moments, part.size()),
                         Vector<M>(unit + in_unit, part.size()), config_.momentum, scalars);
  }
}

template <class M>
void Muon<M>::gather(Device& device, const Stack& stack) {
  const Region region(device.timers(), "gather momentum");
  M* const unit = gathered_.data() + tp_->rank() * stack.layout.unit_size;
  if (stack.shards->size() > 1) {
    const index_t piece = stack.unit_size / stack.shards->size();
    comm::all_gather<M>(*stack.shards, unit + stack.shards->rank() * piece, count(piece), unit, device.stream());
  }
  if (tp_->size() > 1)
    comm::all_gather<M>(*tp_, unit, count(stack.layout.unit_size), gathered_.data(), device.stream());
}

template <class M>
void Muon<M>::orthogonalise(Device& device, const Stack& stack) {
  for (const HiddenMatrix& m : stack.layout.matrices) {
    if (m.tp_owner != tp_->rank() || m.shard_owner != stack.shards->rank()) continue;
    for (std::size_t rank = 0; rank < m.shards.size(); ++rank) {
      const MatrixShard& s = m.shards[rank];
      const M* const from = gathered_.data() + static_cast<index_t>(rank) * stack.layout.unit_size + s.offset;
      kernels::copy_matrix<M>(device, MatrixRef<const M>(from, s.rows, s.columns),
                              MatrixRef<M>(whole(m)).row_block(s.row, s.rows).column_block(s.column, s.columns));
    }
    kernels::orthogonalise<M>(device, whole(m), workspace_, static_cast<int>(config_.newton_schulz_steps));
  }
  const Region region(device.timers(), "broadcast updates");
  for (const HiddenMatrix& m : stack.layout.matrices) {
    const std::size_t size = count(m.rows * m.columns);
    if (tp_->size() > 1 && m.shard_owner == stack.shards->rank()) {
      comm::broadcast<M>(*tp_, whole(m).data(), size, m.tp_owner, device.stream());
    }
    if (stack.shards->size() > 1) {
      comm::broadcast<M>(*stack.shards, whole(m).data(), size, m.shard_owner, device.stream());
    }
  }
}

template <class M>
void Muon<M>::descend(Device& device, const Stack& stack, std::size_t layer, const UpdatedWeights<M>& weights,
                      double learning_rate, Vector<const kernels::UpdateScalars> scalars) {
  for (const auto& [part, matrix, in_unit, in_shard] : stack.layers[layer]) {
    const HiddenMatrix& m = stack.layout.matrices[matrix];
    const MatrixShard& s = stack.local[matrix];
    const double keep = part.decays ? 1.0 - learning_rate * config_.weight_decay : 1.0;
    const double size = update_size * std::sqrt(static_cast<double>(std::max(m.rows, m.columns)));
    kernels::descend<M>(
        device, weights.master_of(part),
        MatrixRef<const M>(MatrixRef<M>(whole(m)).row_block(s.row, s.rows).column_block(s.column, s.columns)), in_shard,
        keep, model::muon_rate_factor(m.fan_in_ratio) * learning_rate * size, scalars, weights.copy_of(part));
  }
}

template <class M>
std::vector<Moment<M>> Muon<M>::moments() const {
  std::vector<Moment<M>> all = adamw_->moments();
  all.push_back({"momentum", Covers::hidden_matrices, layouts_.moments, momentum_});
  return all;
}

template <class M>
comm::StepTraffic Muon<M>::traffic() const {
  comm::StepTraffic sum;
  for (const Stack& stack : stacks_) {
    const auto bytes = [&](index_t of_layer) {
      return of_layer * static_cast<index_t>(stack.layers.size() * sizeof(M));
    };
    const int tp = tp_->size(), shards = stack.shards->size();
    sum.tensor_parallel += comm::all_gather_bytes(bytes(stack.layout.unit_size), tp);
    sum.data_parallel += comm::all_gather_bytes(bytes(stack.unit_size / shards), shards);
    for (const HiddenMatrix& m : stack.layout.matrices) {
      if (m.shard_owner == stack.shards->rank())
        sum.tensor_parallel += comm::broadcast_bytes(bytes(m.rows * m.columns), tp);
      sum.data_parallel += comm::broadcast_bytes(bytes(m.rows * m.columns), shards);
    }
  }
  return sum;
}

}  // namespace

OptimizerKind muon() {
  OptimizerKind kind = kind_of<Muon>("muon");
  kind.has_bf16_states = false;
  kind.keys = {"optimizer.momentum", "optimizer.newton_schulz_steps"};
  kind.check = [](const deck::Config& c, deck::Findings& f) {  // sums depend on the grid
    refuse_layout(c, f, "optimizer.name", "Muon", "name = 'adamw'");
    if (deck::appended_layers(c.model) > 0 && f.is_valid({"optimizer.name"})) {
      f.error({"optimizer.name"},
              "Muon needs layers with the same matrices, and layers that predict later tokens have one more",
              "name = 'adamw'");
    }
  };
  return kind;
}

}  // namespace nanotron::optim
