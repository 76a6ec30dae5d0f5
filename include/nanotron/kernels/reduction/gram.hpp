#pragma once

// The Gram matrix of a matrix's rows, and linear combinations of the rows.

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// Number of pairs i <= j < rows. gram stores them as (0, 0), (0, 1), (1, 1), (0, 2), ...
NANOTRON_FUNCTION constexpr index_t gram_pairs(index_t rows) { return rows * (rows + 1) / 2; }

/// gram (gram_pairs(x.rows)) <- sum over columns of x(i, c) x(j, c), fp64, in a fixed order. M is double or float.
template <class M>
void gram(Device& device, MatrixRef<const M> x, Vector<double> gram);

/// y(c) <- sum over rows of coefficients(r) x(r, c), in order, in fp64, rounded once. y (x.columns) may not overlap x.
template <class M>
void combine_rows(Device& device, MatrixRef<const M> x, Vector<const double> coefficients, Vector<M> y);

}  // namespace nanotron::kernels
