#include "table_builder.hpp"

namespace nanotron::model::detail {
namespace {

constexpr index_t alignment = 64;  // elements: every GEMM operand starts on a cache line

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
                             .first_layer_unit = first_layer_unit_});
}

void TableBuilder::align(index_t shards) {
  const index_t to = alignment * shards;
  cursor_ = begin_ + (cursor_ - begin_ + to - 1) / to * to;
}

void TableBuilder::end_unit(int uses) {
  align(shards_);
  table_.units.push_back({{begin_, cursor_}, uses, replicas_});
}

void TableBuilder::end_layer_units(std::size_t first_spec, const std::vector<index_t>& layer_numbers) {
  first_layer_unit_ = static_cast<index_t>(table_.units.size());
  end_unit(1);
  const Unit first = table_.units.back();
  stack_layers(first_spec, layer_numbers);
  for (index_t l = 1; l < static_cast<index_t>(layer_numbers.size()); ++l) {
    const index_t begin = first.range.begin + l * first.range.size();
    table_.units.push_back({{begin, begin + first.range.size()}, 1, replicas_});
  }
}

void TableBuilder::stack_layers(std::size_t first_spec, const std::vector<index_t>& layer_numbers) {
  const index_t stride = cursor_ - begin_;
  for (std::size_t i = first_spec; i < table_.specs.size(); ++i) {
    table_.specs[i].layers = model_.num_hidden_layers;
    if (!table_.specs[i].layer_numbers.empty()) table_.specs[i].layer_numbers = layer_numbers;
    table_.specs[i].is_stacked = true;
    table_.specs[i].layer_stride = stride;
  }
  cursor_ = begin_ + static_cast<index_t>(layer_numbers.size()) * stride;
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
  ParameterSpec spec{.name = name, .rows = n, .is_1d = true, .initial = initial};
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
  ParameterSpec spec{.name = name, .rows = n, .is_1d = true, .partition = Partition::column_parallel};
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
  spec.gradient_is_partial = held.shared;
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
