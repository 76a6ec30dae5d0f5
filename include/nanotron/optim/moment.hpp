#pragma once

// The states of optimizers: what their sharding, checkpoints, resharding and the comparison of replicas follow from.

#include <string>
#include <variant>
#include <vector>

#include "nanotron/model/parameters/parameter_table.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::optim {

/// Which tensors an optimizer has moments of. hidden_matrices: the 2-D parameters of the layers.
enum class Covers { all, hidden_matrices, others };

inline bool covers(Covers what, const nn::ParameterSpec& spec) {
  if (!spec.has_gradient) return false;
  const bool is_hidden = spec.is_stacked && !spec.is_1d;
  return what == Covers::all || is_hidden == (what == Covers::hidden_matrices);
}

/// A state, stored in a checkpoint as /optimizer/<name>: shaped as the parameters that it covers and sharded as they
/// are, such as a running mean of gradients; or with tensors of its own, such as a matrix for each side of a matrix.
template <class M>
struct Moment {
  std::string name;
  Covers over = Covers::all;
  nn::BufferLayout layout;  // of the flat space of the parameters, or of its own tensors
  std::variant<Vector<M>, Vector<bf16>> values;
  bool or_weights = false;   // a checkpoint without it gives its weights; else it must be of the same optimizer
  bool are_weights = false;  // those to use, see WeightsFor: a checkpoint stores them as the parameters
  /// Its own tensors of the whole model, with the layers that this rank has, at offsets of a flat space of their own;
  /// named as the parameters that they belong to. Ranks of a replicate group have the same.
  std::vector<nn::ParameterSpec> own_tensors{};

  std::vector<nn::ParameterSpec> tensors(const model::ParameterTable& table) const {
    if (!own_tensors.empty()) return own_tensors;
    std::vector<nn::ParameterSpec> covered;
    for (const nn::ParameterSpec& spec : table.specs) {
      if (covers(over, spec)) covered.push_back(spec);
    }
    return covered;
  }
  /// What this rank writes, where it owns `owned` of the parameters.
  nn::BufferLayout part_of(const nn::BufferLayout& owned) const {
    return own_tensors.empty() ? layout.common(owned) : layout;
  }
  /// Of the flat space, what belongs to 2-D parameters of a section.
  std::vector<Range> ranges_of(const model::Section& section) const {
    if (own_tensors.empty()) return {section.flat};
    std::vector<Range> ranges;
    for (const nn::ParameterSpec& spec : own_tensors) {
      if (spec.replicas != section.replicas) continue;
      for (index_t l = 0; l < spec.local_layers(); ++l)
        ranges.push_back({spec.offset_of(l), spec.offset_of(l) + spec.local_size()});
    }
    return ranges;
  }
};

}  // namespace nanotron::optim
