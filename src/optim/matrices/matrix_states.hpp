#pragma once

// States of an optimizer of whole matrices that the rank which computes with a matrix has of it whole.

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "nanotron/kernels/optim/update_operands.hpp"
#include "nanotron/optim/moment.hpp"
#include "nanotron/tensor/arena.hpp"

namespace nanotron::optim {

/// Numbers of the layers, by the name of the parameter.
using OwnedLayers = std::map<std::string, std::vector<index_t>>;

template <class M>
class MatrixState {
 public:
  using Shape = std::optional<std::pair<index_t, index_t>>;

  /// shape(spec): of the state of a 2-D parameter of layers; nothing where it has none.
  template <class ShapeOf>
  MatrixState(std::string name, const model::ParameterTable& table, const OwnedLayers& owned, bool in_bf16,
              const ShapeOf& shape, Arena& arena) {
    moment_ = {std::move(name), Covers::hidden_matrices, {}, {}};
    index_t size = 0;
    for (const nn::ParameterSpec& spec : table.specs) {
      const Shape rows_columns = covers(Covers::hidden_matrices, spec) ? shape(spec) : Shape{};
      if (rows_columns) add(spec, *rows_columns, owned, size);
    }
    moment_.layout = nn::BufferLayout::whole(size);
    if (in_bf16)
      moment_.values = arena.take<bf16>(MemoryKind::optimizer, size);
    else
      moment_.values = arena.take<M>(MemoryKind::optimizer, size);
  }

  /// Empty where no parameter has this state.
  void append_to(std::vector<Moment<M>>& moments) const {
    if (!moment_.own_tensors.empty()) moments.push_back(moment_);
  }
  /// Of one layer of a parameter that is owned here; of no elements where it has no such state.
  kernels::StateVector<M> of(const std::string& parameter, index_t layer) const {
    const auto found = std::ranges::find(moment_.own_tensors, parameter, &nn::ParameterSpec::name);
    return std::visit(
        [&]<class S>(const Vector<S>& values) {
          if (found == moment_.own_tensors.end()) return kernels::StateVector<M>(Vector<S>());
          const auto place = std::ranges::find(found->layer_numbers, layer) - found->layer_numbers.begin();
          return kernels::StateVector<M>(Vector<S>(values.data() + found->offset_of(place), found->local_size()));
        },
        moment_.values);
  }
  Matrix<M> matrix_of(const std::string& parameter, index_t layer) const {
    const auto values = std::get<Vector<M>>(of(parameter, layer));
    const auto found = std::ranges::find(moment_.own_tensors, parameter, &nn::ParameterSpec::name);
    if (found == moment_.own_tensors.end()) return {};
    return Matrix<M>(values.data(), found->rows, found->columns);
  }

 private:
  void add(nn::ParameterSpec spec, const std::pair<index_t, index_t>& shape, const OwnedLayers& owned, index_t& size) {
    const auto layers = owned.find(spec.name);
    std::tie(spec.rows, spec.columns) = shape;
    spec.partition = nn::Partition::replicated;
    spec.local = spec.owned = {0, spec.rows};
    spec.layer_numbers = layers == owned.end() ? std::vector<index_t>{} : layers->second;
    spec.offset = size;
    spec.layer_offsets.clear();
    for (index_t l = 0; l < spec.local_layers(); ++l) spec.layer_offsets.push_back(l * spec.rows * spec.columns);
    size += spec.local_layers() * spec.rows * spec.columns;
    moment_.own_tensors.push_back(std::move(spec));
  }

  Moment<M> moment_;
};

}  // namespace nanotron::optim
