#include "adapter_specs.hpp"

#include <algorithm>
#include <cmath>

#include "nanotron/deck/config.hpp"
#include "nanotron/model/adapters/adapters.hpp"
#include "nanotron/model/parameters/name_patterns.hpp"

namespace nanotron::model {
namespace {

constexpr std::string_view weight_end = "/weight";

std::string module_of(const ParameterTable& table, std::size_t spec) {
  const std::string& name = table.specs[spec].name;
  return name.substr(0, name.size() - weight_end.size());
}

bool is_linear_of_layers(const nn::ParameterSpec& spec) {
  return spec.is_stacked && !spec.is_1d && spec.stack.empty() && spec.name.ends_with("_proj/weight");
}

}  // namespace

bool is_adapted(const deck::LoraConfig& lora, const nn::ParameterSpec& weight) {
  if (!is_linear_of_layers(weight)) return false;
  const std::string module = weight.name.substr(0, weight.name.size() - weight_end.size());
  return std::ranges::any_of(name_patterns(lora.targets),
                             [&](const NamePattern& p) { return !p.is_inverted && p.fits_end(module); });
}

double adapter_parameters(const deck::Config& c) {
  if (c.lora.rank == 0) return 0.0;
  double elements = 0.0;
  for (const nn::ParameterSpec& spec : make_parameter_table(c).specs) {
    if (!spec.is_frozen) elements += static_cast<double>(spec.logical_size());
  }
  return elements;
}

namespace detail {
namespace {

// Runs of linear layers that one GEMM computes: column parallel, and each row-parallel one by itself.
std::vector<std::vector<std::size_t>> fused_weights(const ParameterTable& table) {
  std::vector<std::vector<std::size_t>> groups;
  bool continues = false;
  for (std::size_t i = 0; i < table.specs.size(); ++i) {
    const ParameterSpec& spec = table.specs[i];
    if (!is_linear_of_layers(spec)) continue;
    const bool is_column_parallel = spec.partition == Partition::column_parallel;
    if (!continues || !is_column_parallel) groups.emplace_back();
    groups.back().push_back(i);
    continues = is_column_parallel;
  }
  return groups;
}

void set_initial(ParameterSpec& spec, Initial initial, double bound) {
  spec.initial = initial;
  spec.deviation = bound;
  spec.fan_in_ratio = 1.0;
}

// Kaiming uniform with a = sqrt(5), as PEFT: |x| <= 1 / sqrt(in).
void add_a(TableBuilder& build, ParameterTable& table, std::size_t weight, index_t rank) {
  const std::string name = module_of(table, weight) + "/lora_A/weight";
  const ParameterSpec base = table.specs[weight];
  if (base.partition == Partition::column_parallel) {
    build.whole_matrix(name, rank, base.columns, Role::hidden, table.layout.tensor_shards == 0);
  } else {
    build.matrix(name, rank, base.columns, Partition::row_parallel, exclusively(base.local), Role::hidden);
  }
  set_initial(table.specs.back(), Initial::uniform, 1.0 / std::sqrt(static_cast<double>(base.columns)));
}

void add_b(TableBuilder& build, ParameterTable& table, std::size_t weight, index_t rank) {
  const std::string name = module_of(table, weight) + "/lora_B/weight";
  const ParameterSpec base = table.specs[weight];
  if (base.partition == Partition::column_parallel) {
    build.matrix(name, base.rows, rank, Partition::column_parallel, {base.local, base.owned, base.gradient_is_partial},
                 Role::hidden);
  } else {
    build.whole_matrix(name, base.rows, rank, Role::hidden, table.layout.tensor_shards == 0);
  }
  set_initial(table.specs.back(), Initial::zeros, 0.0);
}

}  // namespace

void add_adapters(TableBuilder& build, ParameterTable& table, const LayerNumbers& layers, const TableLayout& layout) {
  std::vector<std::vector<std::size_t>> column_parallel, row_parallel;
  for (std::vector<std::size_t> group : fused_weights(table)) {
    std::erase_if(group, [&](std::size_t i) { return !is_adapted(layout.lora, table.specs[i]); });
    if (group.empty()) continue;
    const bool by_rows = table.specs[group.front()].partition == Partition::row_parallel;
    (by_rows ? row_parallel : column_parallel).push_back(std::move(group));
  }
  for (ParameterSpec& spec : table.specs) {
    spec.is_frozen = true;
    spec.has_gradient = false;
  }
  for (Section& section : table.sections) section.is_frozen = true;
  build.begin_section(comm::ReplicaSet::data_parallel, layout.shards);
  const index_t begin = build.cursor();
  build.begin_layers(layers);
  const auto add = [&](const std::vector<std::vector<std::size_t>>& groups, const auto& add_to, bool aligns_each) {
    for (const std::vector<std::size_t>& group : groups) {
      build.align();
      for (const std::size_t weight : group) {
        if (aligns_each) build.align();
        add_to(build, table, weight, layout.lora.rank);
      }
    }
  };
  add(column_parallel, add_a, false);
  add(row_parallel, add_b, true);
  add(column_parallel, add_b, true);
  add(row_parallel, add_a, false);
  build.end_layer_units();
  build.end_section({begin, begin});
}

AdapterGroup adapters_of(const ParameterTable& table, const ParameterSpec& first, index_t rows) {
  AdapterGroup found;
  auto at = static_cast<std::size_t>(&first - table.specs.data());
  const auto number_of = [&](const std::string& name) {
    return static_cast<std::size_t>(&table[name] - table.specs.data());
  };
  for (index_t row = 0; row < rows; ++at) {
    const ParameterSpec& base = table.specs[at];
    const std::string module = module_of(table, at);
    if (table.contains(module + "/lora_A/weight")) {
      found.base.push_back(at);
      found.a.push_back(number_of(module + "/lora_A/weight"));
      found.b.push_back(number_of(module + "/lora_B/weight"));
      found.columns.push_back({row, row + base.local_rows()});
    }
    row += base.local_rows();
  }
  return found;
}

}  // namespace detail
}  // namespace nanotron::model
