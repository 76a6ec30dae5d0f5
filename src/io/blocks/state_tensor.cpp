#include "nanotron/io/blocks/state_tensor.hpp"

#include <functional>
#include <numeric>

namespace nanotron::io {

const std::string& dataset_of(const StateTensor& tensor) { return tensor.slice ? tensor.slice->dataset : tensor.name; }

std::vector<index_t> dataset_shape(const StateTensor& tensor) {
  std::vector<index_t> shape = tensor.global_shape;
  if (tensor.slice) shape.insert(shape.begin(), tensor.slice->count);
  return shape;
}

std::int64_t begin_in_dataset(const StateTensor& tensor, ScalarType type) {
  if (!tensor.slice) return 0;
  const std::vector<index_t>& shape = tensor.global_shape;
  return std::accumulate(shape.begin(), shape.end(), tensor.slice->index, std::multiplies<>()) *
         static_cast<std::int64_t>(size_of(type));
}

}  // namespace nanotron::io
