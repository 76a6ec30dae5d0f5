#pragma once

// The arithmetic of Adasum (Maleki et al. 2020) without the gradients. For the gradients a, b of one tensor
//
//   Adasum(a, b) = (1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b
//
// and over more of them Adasum(first half, second half), the first half being the larger. So the result is a linear
// combination of the replicas' gradients, whose coefficients follow from their inner products.

#include <span>
#include <vector>

#include "nanotron/model/parameter_table.hpp"

namespace nanotron::parallel {

/// One tensor of one layer in the flat space: what this rank has of it, and what of that it answers for (a key head
/// that several tensor-parallel ranks hold counts once).
struct AdasumTensor {
  Range local, owned;
};
std::vector<AdasumTensor> adasum_tensors(const model::ParameterTable& table);

/// The elements of the flat space, of `size`, that replica `rank` of `replicas` combines: all but the last have
/// piece_size(size, replicas).
index_t piece_size(index_t size, int replicas);
Range piece_of(index_t size, int replicas, int rank);

/// coefficients (R) <- those of Adasum over R replicas whose inner products are gram (see kernels/reduction/gram.hpp). The part of
/// a gradient of zero is 1; so is that of a sum that cancels to 1e-6 of what went in, where its direction is rounding.
/// What is not a number stays so.
void adasum_coefficients(std::span<const double> gram, std::span<double> coefficients);

}  // namespace nanotron::parallel
