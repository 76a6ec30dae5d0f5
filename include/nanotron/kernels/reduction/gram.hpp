#pragma once

// Inner products among the rows of a matrix, and sums of its rows.

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// Pairs (i, j), i <= j < rows, in the order of gram: j ascending, and i for each j.
NANOTRON_FUNCTION constexpr index_t gram_pairs(index_t rows) { return rows * (rows + 1) / 2; }

/// gram (gram_pairs(x.rows)) <- sum over columns of x(i, c) x(j, c), in fp64 and in a fixed order. M is double or float.
template <class M>
void gram(Device& device, MatrixRef<const M> x, Vector<double> gram);

/// y(c) <- sum over rows of coefficients(r) x(r, c), in order, in fp64, rounded once. y (x.columns) may not be in x.
template <class M>
void combine_rows(Device& device, MatrixRef<const M> x, Vector<const double> coefficients, Vector<M> y);

}  // namespace nanotron::kernels
