#pragma once

// Which 1-D parameters backward of a unit completes.

#include <vector>

#include "nanotron/model/parameters/parameter_table.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::parallel {

/// params: those of the section. By number: the 1-D parameters of the unit's layer; those of experts are in the units
/// of their section. Of those of no layer backward of the embedding completes the norm of the embedding; the others are
/// of the final norm.
inline std::vector<std::vector<Range>> params_1d_by_number(const model::ParameterTable& table, const Range& params) {
  const index_t last = table.final_norm_source();
  const bool is_apart = table.is_shared() && table.is_of_end(last);
  std::vector<std::vector<Range>> params_1d(table.units.size() + 1);
  for (const nn::ParameterSpec& spec : table.specs) {
    if (!spec.is_1d) continue;
    for (index_t layer = 0; layer < spec.local_layers(); ++layer) {
      const bool is_of_embedding = spec.name.starts_with("model/embed_");
      const index_t number =
          spec.is_stacked   ? table.layer_unit(table.local_layer(spec.layer_numbers[static_cast<std::size_t>(layer)]))
          : is_of_embedding ? table.embedding_unit()
          : is_apart        ? static_cast<index_t>(table.units.size())
                            : table.unit_of(last, table.dense());
      const index_t begin = spec.offset_of(layer);
      if (!params.contains(begin)) continue;
      params_1d[static_cast<std::size_t>(number)].push_back({begin, begin + spec.local_size()});
    }
  }
  return params_1d;
}

}  // namespace nanotron::parallel
