#pragma once

// The coefficients of Adasum (Maleki et al. 2020). For two gradients x, y of one tensor
//
//   Adasum(x, y) = (1 - x.y / (2 |x|^2)) x + (1 - x.y / (2 |y|^2)) y
//
// For R > 2 gradients: Adasum(Adasum(first half), Adasum(second half)), where the first half has ceil(R / 2) of them.
// The result is a linear combination of the R gradients; its coefficients follow from their inner products.

#include <span>
#include <vector>

#include "nanotron/model/parameters/parameter_table.hpp"

namespace nanotron::parallel {

/// One tensor of one layer in the flat space. local: what this rank stores; owned: what of that it counts in inner
/// products (a KV head stored on several tensor-parallel ranks counts once).
struct AdasumTensor {
  Range local, owned;
};
std::vector<AdasumTensor> adasum_tensors(const model::ParameterTable& table);

/// The elements of [0, size) that data-parallel rank `rank` of `replicas` combines: combined_size(size, replicas) of
/// them, fewer on the last ranks.
index_t combined_size(index_t size, int replicas);
Range combined_range(index_t size, int replicas, int rank);

/// coefficients (R) <- those of Adasum over R gradients with inner products gram (kernels/reduction/gram.hpp). The
/// factor of x is 1 where x = 0, or where x is a sum that cancels to 1e-6 of its terms: its direction is then rounding
/// error. NaN stays NaN.
void adasum_coefficients(std::span<const double> gram, std::span<double> coefficients);

}  // namespace nanotron::parallel
