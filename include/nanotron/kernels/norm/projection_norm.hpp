#pragma once

// RMSNorm over a row of which each rank of a group has some columns (OLMo 2: all heads of a query or key projection):
//
//   r = 1 / sqrt(sum of x^2 over all columns / n + eps)       y = (x r) s          s: w or 1 + w, see NormScale
//   g = dy s:     dx = r (g - x r^2 (sum of g x over all columns) / n)       dw = sum over rows of dy x r
//
// Each rank computes its part of the two sums, in an order of one block of columns (tensor/sum_order.hpp); the caller
// adds them over the group. M is the master type; call with T explicit.

#include "nanotron/kernels/norm/norm.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/shard.hpp"
#include "nanotron/tensor/sum_order.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// sums (rows of x) <- sum of x^2 over the columns in `order`.
template <class T>
void projection_squares(Device& device, MatrixRef<const T> x, const SumOrder& order, Vector<master_t<T>> sums);

/// statistics (rows of x): the complete sums on entry, r on return. w of the columns of x, `columns` n. No aliasing.
template <class T>
void projection_norm_forward(Device& device, MatrixRef<const T> x, const NormScale<master_t<T>>& w, index_t columns,
                             double eps, MatrixRef<T> y, Vector<master_t<T>> statistics);

/// sums (rows of x) <- sum of g x over the columns in `order`.
template <class T>
void projection_products(Device& device, MatrixRef<const T> dy, MatrixRef<const T> x, const NormScale<master_t<T>>& w,
                         const SumOrder& order, Vector<master_t<T>> sums);

/// What backward reads. sums: complete. Where several ranks have a column, with parts of dy, only one of them has it in
/// `owned`, and adds the second term of dx there.
template <class T>
struct ProjectionNormGradient {
  MatrixRef<const T> x;
  NormScale<master_t<T>> w;
  Vector<const master_t<T>> rstd, sums;
  index_t columns = 0;  // n
  Range owned{};
};

/// dx is overwritten and may alias dy; dw is accumulated, the sum over rows in a fixed order: one for each of
/// `segments` equal pieces of the rows, and these in a tree. workspace: bias_workspace_size of these rows, columns and
/// segments.
template <class T>
void projection_norm_backward(Device& device, MatrixRef<const T> dy, const ProjectionNormGradient<T>& of,
                              MatrixRef<T> dx, Vector<master_t<T>> dw, Vector<master_t<T>> workspace,
                              index_t segments = 1);

}  // namespace nanotron::kernels
