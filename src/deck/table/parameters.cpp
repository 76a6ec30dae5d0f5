#include "nanotron/deck/table/parameters.hpp"

#include <utility>

#include "deck/keys/rows.hpp"
#include "nanotron/base/error.hpp"

namespace nanotron::deck {
namespace {

std::vector<Parameter> all_rows() {
  std::vector<Parameter> all;
  for (auto rows : {run_rows, model_rows, moe_rows, parallel_rows, optimizer_rows, schedule_rows, data_rows,
                    precision_rows, checkpoint_rows, output_rows, lora_rows, preference_rows}) {
    for (Parameter& p : rows()) all.push_back(std::move(p));
  }
  return all;
}

}  // namespace

const std::vector<Parameter>& parameters() {
  static const std::vector<Parameter> table = all_rows();
  return table;
}

const Parameter& parameter(const std::string& group, const std::string& name) {
  for (const Parameter& p : parameters()) {
    if (p.group == group && p.name == name) return p;
  }
  throw Error(ExitCode::system_error, "no parameter " + group + "." + name);
}

bool is_stored(const Parameter& p, const Config& c) {
  return p.part_of != PartOf::no_model && (p.part_of != PartOf::moe_models || c.model.moe.num_experts > 0);
}

bool is_compared(const Parameter& p, const Config& a, const Config& b) {
  const bool both_moe = a.model.moe.num_experts > 0 && b.model.moe.num_experts > 0;
  return p.part_of == PartOf::every_model || p.part_of == (both_moe ? PartOf::moe_models : PartOf::dense_models);
}

const std::vector<NamelistGroup>& parameter_groups() {
  static const std::vector<NamelistGroup> groups = [] {
    std::vector<NamelistGroup> out;
    for (const Parameter& p : parameters()) {
      if (out.empty() || out.back().name != p.group) out.push_back({p.group, {}});
      out.back().variables.push_back({p.name, p.type, p.extent});
    }
    return out;
  }();
  return groups;
}

}  // namespace nanotron::deck
