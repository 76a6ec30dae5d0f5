#pragma once

// Logical tensors, the parts of them that a rank stores, and their offsets in a file.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nanotron/base/types.hpp"

namespace nanotron::io {

/// A rectangle of a logical tensor in device memory (or in the host's). Element (i0, i1, ...) of it is
/// data[i0*stride[0] + i1*stride[1] + ...]. Row-major: the last stride is 1; for three dimensions
/// stride[0] is a multiple of stride[1], or rows are packed (stride[1] == extent[2]).
struct StatePart {
  std::vector<index_t> offset;
  std::vector<index_t> extent;
  void* data = nullptr;         // of the type of the call or group
  std::vector<index_t> stride;  // elements
};

/// How tensors of one shape are stored in one dataset (count, shape of a tensor): this is tensor `index` of
/// it.
struct Slice {
  std::string dataset;
  index_t index = 0, count = 0;
};

/// One logical tensor and the parts of it that this rank stores; without parts it writes or reads
/// nothing of it. Several parts have no row in common and come in the order of the tensor; each is
/// packed, and they are stored one after another in one allocation.
struct StateTensor {
  std::string name;  // below /parameters: "model/layers/mlp/up_proj/weight"
  /// (layers, rows, columns), (layers, n), (rows, columns) or (n).
  std::vector<index_t> global_shape;
  std::vector<StatePart> parts;
  std::optional<Slice> slice{};   // none: the dataset is the tensor's own, of its name
  std::vector<index_t> layers{};  // the layers of the model that its rows are; empty: all, or not stacked
};

/// The dataset below a group that holds the tensor, its shape, and the bytes in it before the tensor.
const std::string& dataset_of(const StateTensor& tensor);
std::vector<index_t> dataset_shape(const StateTensor& tensor);
std::int64_t begin_in_dataset(const StateTensor& tensor, ScalarType type);

/// A tensor whose elements are stored in row-major order in a file, from byte `begin` on.
struct PlacedTensor {
  const StateTensor* tensor;
  ScalarType type;
  std::int64_t begin;
};

/// A source of the parts of tensors other than the datasets of a file.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual std::int64_t bytes() const = 0;
  /// Overwrites the parts of the tensors with the data at their positions. Collective over the ranks of the source;
  /// errors are those of all ranks.
  virtual void read(std::span<const PlacedTensor> tensors) = 0;
};

}  // namespace nanotron::io
