#pragma once

#include <algorithm>
#include <iterator>

#include "nanotron/optim/grad_clip.hpp"
#include "nanotron/trainer/training_state.hpp"

namespace nanotron::trainer {

// The ranks that own the gradient of a section: its shard group and, for experts, the expert-parallel group too.
// Consecutive sections of the same groups form one part.
template <class T>
std::vector<optim::NormPart> norm_parts(const TrainingState<T>& state, comm::ProcessGrid& grid) {
  const model::ParameterTable& table = state.model.table();
  std::vector<optim::NormPart> parts;
  for (const model::Section& section : table.sections) {
    std::vector<comm::Group*> groups{&grid.data_groups(section.replicas).shard};
    if (section.replicas == comm::ReplicaSet::expert_data_parallel && grid.ep().size() > 1)
      groups.push_back(&grid.ep());
    if (parts.empty() || parts.back().groups != groups) parts.push_back({.owned = {}, .groups = groups});
    std::ranges::copy(
        optim::owned_gradient_ranges(table, state.model.parameters().layouts, state.sharding, section.flat),
        std::back_inserter(parts.back().owned));
  }
  return parts;
}

}  // namespace nanotron::trainer
