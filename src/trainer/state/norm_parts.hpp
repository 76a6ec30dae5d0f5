#pragma once

#include <algorithm>
#include <iterator>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/model/layers/transformer.hpp"
#include "nanotron/optim/update_decision.hpp"

namespace nanotron::trainer {

// The ranks that own the gradient of a section: its shard group and, for experts, the expert-parallel group too.
// Consecutive sections of the same groups form one part.
template <class T>
std::vector<optim::NormPart> norm_parts(const model::Transformer<T>& model, const model::Sharding& sharding,
                                        comm::ProcessGrid& grid) {
  const model::ParameterTable& table = model.table();
  std::vector<optim::NormPart> parts;
  for (const model::Section& section : table.sections) {
    std::vector<comm::Group*> groups{&grid.data_groups(section.replicas).shard};
    if (section.replicas == comm::ReplicaSet::expert_data_parallel && grid.ep().size() > 1)
      groups.push_back(&grid.ep());
    if (parts.empty() || parts.back().groups != groups) parts.push_back({.owned = {}, .groups = groups});
    std::ranges::copy(optim::owned_gradient_ranges(table, model.parameters().layouts, sharding, section.flat),
                      std::back_inserter(parts.back().owned));
  }
  return parts;
}

}  // namespace nanotron::trainer
