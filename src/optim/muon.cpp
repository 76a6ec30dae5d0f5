#include "nanotron/optim/muon.hpp"

#include <algorithm>
#include <cmath>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/kernels/copy_matrix.hpp"
#include "nanotron/kernels/muon.hpp"
#include "nanotron/model/parametrization.hpp"

namespace nanotron::optim {
namespace {

constexpr double update_size = 0.2;  // root mean square, as AdamW's

std::size_t count(index_t n) { return static_cast<std::size_t>(n); }

Range layers_range(const model::ParameterTable& table) {
  return {table.units[count(table.first_layer_unit)].range.begin,
          table.units[count(table.first_layer_unit + table.layers - 1)].range.end};
}

// Of the moments, what lies inside the range or outside of it.
nn::ParameterPlaces with_moments(nn::ParameterPlaces places, const Range& range, index_t size, bool inside) {
  std::vector<Range> kept;
  const auto keep = [&](const Range& of) {
    for (const nn::Placement::Part& p : places.moments.within(of)) kept.push_back(p.range);
  };
  if (inside) {
    keep(range);
  } else {
    keep({0, range.begin});
    keep({range.end, size});
  }
  places.moments = nn::Placement::packed(kept);
  return places;
}

std::vector<MatrixShard> local_shards(const model::ParameterTable& table) {
  std::vector<MatrixShard> shards;
  for (const nn::ParameterSpec& spec : table.specs) {
    if (!covers(Covers::hidden_matrices, spec)) continue;
    const bool by_columns = spec.cut == nn::Cut::columns;
    shards.push_back({.offset = spec.offset - layers_range(table).begin,
                      .rows = spec.local_rows(),
                      .columns = spec.local_columns(),
                      .row = by_columns ? 0 : spec.local.begin,
                      .column = by_columns ? spec.local.begin : 0});
  }
  return shards;
}

}  // namespace

template <class M>
Muon<M>::Muon(const deck::Config& config, const OptimizerPlace& place, Arena& arena)
    : config_(config.optimizer),
      sharding_(place.sharding),
      tp_size_(place.tp_size),
      tp_rank_(place.tp_rank),
      tp_(place.tp),
      layout_(muon_layout(config.model, tp_size_, config.parallel.tp_mode, place.table.shards)),
      local_(local_shards(place.table)),
      unit_size_(place.table.units[count(place.table.first_layer_unit)].range.size()),
      places_(with_moments(place.places, layers_range(place.table), place.table.size, true)),
      layers_(pieces_of_layers(place.table)),
      adamw_(config.optimizer, place.table,
             with_moments(place.places, layers_range(place.table), place.table.size, false), Covers::others, arena),
      momentum_(arena.take<M>(MemoryKind::optimizer, places_.moments.size())),
      gathered_(arena.take<M>(MemoryKind::workspace, tp_size_ * layout_.unit)),
      whole_(arena.take<M>(MemoryKind::workspace, layout_.whole)),
      workspace_(arena.take<M>(MemoryKind::workspace, layout_.workspace)) {}

template <class M>
std::vector<std::vector<typename Muon<M>::Piece>> Muon<M>::pieces_of_layers(const model::ParameterTable& table) const {
  std::vector<std::vector<Piece>> layers(count(table.layers));
  for (index_t layer = 0; layer < table.layers; ++layer) {
    const index_t unit = table.units[count(table.layer_unit(layer))].range.begin;
    for (std::size_t m = 0; m < local_.size(); ++m) {
      const index_t begin = unit + local_[m].offset;
      for (const UpdatePart& part : update_parts(Range{begin, begin + local_[m].rows * local_[m].columns}, places_)) {
        layers[count(layer)].push_back({part, m, part.range.begin - unit, part.range.begin - begin});
      }
    }
  }
  return layers;
}

template <class M>
void Muon<M>::update(Device& device, Vector<M> parameters, Vector<const M> gradient, double learning_rate,
                     double gradient_scale) {
  adamw_.update(device, parameters, gradient, learning_rate, gradient_scale);
  const Region region(device.timers(), "muon");
  for (const std::vector<Piece>& layer : layers_) {
    look_ahead(device, layer, gradient, gradient_scale);
    gather(device);
    orthogonalise(device);
    descend(device, layer, parameters, learning_rate);
  }
}

template <class M>
void Muon<M>::look_ahead(Device& device, const std::vector<Piece>& layer, Vector<const M> gradient,
                         double gradient_scale) {
  M* const unit = gathered_.data() + tp_rank_ * layout_.unit;
  for (const auto& [part, matrix, in_unit, in_shard] : layer) {
    kernels::nesterov<M>(device, Vector<const M>(gradient.data() + part.gradient, part.size()),
                         Vector<M>(momentum_.data() + part.moments, part.size()), Vector<M>(unit + in_unit, part.size()),
                         config_.momentum, gradient_scale);
  }
}

template <class M>
void Muon<M>::gather(Device& device) {
  const Region region(device.timers(), "gather momentum");
  M* const unit = gathered_.data() + tp_rank_ * layout_.unit;
  if (sharding_.size > 1) {
    const index_t piece = unit_size_ / sharding_.size;
    comm::all_gather<M>(*sharding_.group, unit + sharding_.rank * piece, count(piece), unit, device.stream());
  }
  if (tp_size_ > 1) comm::all_gather<M>(*tp_, unit, count(layout_.unit), gathered_.data(), device.stream());
}

template <class M>
void Muon<M>::orthogonalise(Device& device) {
  for (const HiddenMatrix& m : layout_.matrices) {
    if (!is_mine(m)) continue;
    for (std::size_t rank = 0; rank < m.shards.size(); ++rank) {
      const MatrixShard& s = m.shards[rank];
      const M* const from = gathered_.data() + static_cast<index_t>(rank) * layout_.unit + s.offset;
      kernels::copy_matrix<M>(device, MatrixRef<const M>(from, s.rows, s.columns),
                              MatrixRef<M>(whole(m)).row_block(s.row, s.rows).column_block(s.column, s.columns));
    }
    kernels::orthogonalise<M>(device, whole(m), workspace_, static_cast<int>(config_.newton_schulz_steps));
  }
  const Region region(device.timers(), "broadcast updates");
  for (const HiddenMatrix& m : layout_.matrices) {
    const std::size_t size = count(m.rows * m.columns);
    if (tp_size_ > 1 && m.shard_owner == sharding_.rank) {
      comm::broadcast<M>(*tp_, whole(m).data(), size, m.tp_owner, device.stream());
    }
    if (sharding_.size > 1) {
      comm::broadcast<M>(*sharding_.group, whole(m).data(), size, m.shard_owner, device.stream());
    }
  }
}

template <class M>
void Muon<M>::descend(Device& device, const std::vector<Piece>& layer, Vector<M> parameters, double learning_rate) {
  const double keep = 1.0 - learning_rate * config_.weight_decay;
  for (const auto& [part, matrix, in_unit, in_shard] : layer) {
    const HiddenMatrix& m = layout_.matrices[matrix];
    const MatrixShard& s = local_[matrix];
    const double size = update_size * std::sqrt(static_cast<double>(std::max(m.rows, m.columns)));
    kernels::descend<M>(device, Vector<M>(parameters.data() + part.parameters, part.size()),
                        MatrixRef<const M>(MatrixRef<M>(whole(m)).row_block(s.row, s.rows).column_block(s.column, s.columns)),
                        in_shard, keep, model::muon_rate(m.fan_in_ratio) * learning_rate * size);
  }
}

template <class M>
std::vector<Moment<M>> Muon<M>::moments() const {
  std::vector<Moment<M>> all = adamw_.moments();
  all.push_back({"momentum", Covers::hidden_matrices, places_.moments, momentum_});
  return all;
}

template <class M>
UpdateTraffic Muon<M>::traffic() const {
  index_t tp = layout_.unit, replicas = unit_size_ / sharding_.size;
  for (const HiddenMatrix& m : layout_.matrices) {
    if (m.shard_owner == sharding_.rank) tp += m.rows * m.columns;
    replicas += m.rows * m.columns;
  }
  const auto bytes = [&](index_t of_layer) {
    return static_cast<std::uint64_t>(of_layer) * layers_.size() * sizeof(M);
  };
  return {.tensor_parallel = tp_size_ > 1 ? bytes(tp) : 0, .data_parallel = sharding_.size > 1 ? bytes(replicas) : 0};
}

template <class M>
std::unique_ptr<Optimizer<M>> make_optimizer(const deck::Config& config, const OptimizerPlace& place, Arena& arena) {
  switch (config.optimizer.name) {
    case deck::OptimizerName::muon: return std::make_unique<Muon<M>>(config, place, arena);
    case deck::OptimizerName::adamw: break;
  }
  return std::make_unique<Adamw<M>>(config.optimizer, place.table, place.places, Covers::all, arena);
}

template class Muon<double>;
template class Muon<float>;
template std::unique_ptr<Optimizer<double>> make_optimizer(const deck::Config&, const OptimizerPlace&, Arena&);
template std::unique_ptr<Optimizer<float>> make_optimizer(const deck::Config&, const OptimizerPlace&, Arena&);

}  // namespace nanotron::optim
