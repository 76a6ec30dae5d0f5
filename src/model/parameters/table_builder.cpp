#include "table_builder.hpp"

#include <algorithm>

#include "nanotron/deck/later_tokens.hpp"

namespace nanotron::model::detail {
namespace {

constexpr index_t alignment = 64;  // elements: every GEMM operand starts on a cache line

bool share_layers(const LayerNumbers& a, const LayerNumbers& b) {
  return std::ranges::any_of(a.of_model, [&](index_t l) { return std::ranges::binary_search(b.of_model, l); });
}

}  // namespace

void TableBuilder::begin_section(comm::ReplicaSet replicas, int shards) {
  replicas_ = replicas;
  shards_ = shards;
  section_begin_ = cursor_;
  first_unit_ = static_cast<index_t>(table_.units.size());
}

void TableBuilder::end_section(const Range& params_1d) {
  table_.sections.push_back({.replicas = replicas_,
                             .flat = {section_begin_, cursor_},
                             .params_1d = params_1d,
                             .units = {first_unit_, static_cast<index_t>(table_.units.size())},
                             .first_layer_unit = first_layer_unit_,
                             .unit_of_layer = unit_of_layer_});
}

void TableBuilder::align(index_t shards) {
  const index_t to = alignment * shards;
  cursor_ = begin_ + (cursor_ - begin_ + to - 1) / to * to;
}

void TableBuilder::end_unit(int uses) {
  align(shards_);
  table_.units.push_back({{begin_, cursor_}, uses, replicas_});
}

void TableBuilder::begin_layers(const LayerNumbers& layers) {
  begin_unit();
  hold(!layers.here.empty());
  parts_ = {{layers, table_.specs.size()}};
}

void TableBuilder::begin_some_layers(const LayerNumbers& layers) {
  parts_.back().end = cursor_;
  cursor_ = begin_;
  for (const Part& part : parts_) {
    if (share_layers(part.layers, layers)) cursor_ = std::max(cursor_, part.end);
  }
  hold(!layers.here.empty());
  parts_.push_back({layers, table_.specs.size()});
}

// Where each layer of the first part lies. The cursor is then behind them.
std::vector<Range> TableBuilder::lay_out_layers(index_t shards) {
  parts_.back().end = cursor_;
  std::vector<Range> layers;
  index_t at = begin_;
  for (const index_t number : parts_.front().layers.here) {
    cursor_ = parts_.front().end;
    for (const Part& part : parts_) {
      if (std::ranges::binary_search(part.layers.here, number)) cursor_ = part.end;
    }
    align(shards);
    layers.push_back({at, at + cursor_ - begin_});
    at = layers.back().end;
  }
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    const std::size_t end = p + 1 < parts_.size() ? parts_[p + 1].first_spec : table_.specs.size();
    for (std::size_t i = parts_[p].first_spec; i < end; ++i) place(table_.specs[i], parts_[p], layers);
  }
  begin_ = cursor_ = at;
  hold(true);
  return layers;
}

void TableBuilder::place(ParameterSpec& spec, const Part& part, const std::vector<Range>& layers) const {
  spec.is_stacked = true;
  spec.layers = static_cast<index_t>(part.layers.of_model.size());
  if (spec.layers < deck::stored_layers(model_)) spec.stack_layers = part.layers.of_model;
  if (spec.layer_numbers.empty()) return;  // not stored here
  const index_t in_layer = spec.offset - begin_;
  const std::vector<index_t>& all = parts_.front().layers.here;
  spec.layer_numbers = part.layers.here;
  spec.layer_offsets.clear();
  for (const index_t number : spec.layer_numbers) {
    const auto layer = std::ranges::lower_bound(all, number) - all.begin();
    spec.layer_offsets.push_back(layers[static_cast<std::size_t>(layer)].begin + in_layer);
  }
  spec.offset = spec.layer_offsets.front();
  for (index_t& offset : spec.layer_offsets) offset -= spec.offset;
}

void TableBuilder::end_layer_units() {
  first_layer_unit_ = static_cast<index_t>(table_.units.size());
  for (const Range& layer : lay_out_layers(shards_)) table_.units.push_back({layer, 1, replicas_});
  unit_of_layer_.clear();
  index_t unit = first_layer_unit_;
  for (const index_t number : table_.layer_numbers) {
    unit_of_layer_.push_back(std::ranges::binary_search(parts_.front().layers.here, number) ? unit++ : no_unit);
  }
}

void TableBuilder::norm(const std::string& prefix, bool partial) {
  norm_weight(prefix, model_.hidden_size, partial);
  if (model_.normalization == deck::Normalization::rms_norm || model_.norm_weight == deck::NormWeight::none ||
      !model_.norm_bias)
    return;
  whole_1d(prefix + "bias", model_.hidden_size, Initial::zeros, partial);
  align();
}

// The factor of a norm is one at the start.
void TableBuilder::norm_weight(const std::string& prefix, index_t n, bool partial) {
  if (model_.norm_weight == deck::NormWeight::none) return;
  whole_1d(prefix + "weight", n, model_.norm_weight == deck::NormWeight::plain ? Initial::ones : Initial::zeros,
           partial);
  align();
}

void TableBuilder::scalar_1d(const std::string& name, double value, bool partial) {
  whole_1d(name, 1, Initial::value, partial);
  table_.specs.back().deviation = value;
}

void TableBuilder::whole_1d(const std::string& name, index_t n, Initial initial, bool partial) {
  ParameterSpec spec{.name = name, .rows = n, .is_1d = true, .replicas = replicas_, .initial = initial};
  spec.local = {0, n};
  spec.owned = tp_rank_ == 0 ? spec.local : Range{0, 0};
  spec.gradient_is_partial = partial;
  add(spec);
}

void TableBuilder::constant_1d(const std::string& name, index_t n) {
  whole_1d(name, n, Initial::zeros, false);
  table_.specs.back().has_gradient = false;
}

void TableBuilder::bias(const std::string& name, index_t n, const Held& held, Initial initial) {
  ParameterSpec spec{
      .name = name, .rows = n, .is_1d = true, .replicas = replicas_, .partition = Partition::column_parallel};
  spec.initial = initial;
  shard(spec, held);
}

void TableBuilder::whole_matrix(const std::string& name, index_t rows, index_t columns, Role role, bool partial) {
  const Range all{0, rows};
  matrix(name, rows, columns, Partition::replicated, {all, tp_rank_ == 0 ? all : Range{0, 0}, partial}, role);
}

void TableBuilder::matrix(const std::string& name, index_t rows, index_t columns, Partition partition, const Held& held,
                          Role role) {
  ParameterSpec spec{.name = name, .rows = rows, .columns = columns, .replicas = replicas_, .partition = partition};
  const Scaling scaling = scaling_of(model_, role);
  spec.deviation = scaling.deviation;
  spec.fan_in_ratio = scaling.fan_in_ratio;
  spec.decays = true;
  shard(spec, held);
}

void TableBuilder::shard(ParameterSpec& spec, const Held& held) {
  spec.local = held.local;
  spec.owned = held.owned;
  spec.gradient_is_partial = held.partial;
  add(spec);
}

void TableBuilder::add(ParameterSpec& spec) {
  spec.offset = cursor_;
  if (is_held_) {
    cursor_ += spec.local_size();
  } else {
    spec.layer_numbers.clear();
  }
  table_.specs.push_back(std::move(spec));
}

}  // namespace nanotron::model::detail
