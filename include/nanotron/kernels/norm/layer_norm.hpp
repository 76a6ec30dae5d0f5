#pragma once

// Layer normalisation (Ba, Kiros and Hinton, 2016):
//
//   mean = mean(x)      rstd = 1 / sqrt(mean((x - mean)^2) + eps)      y = (x - mean) rstd w + b
//
// Weights, biases, statistics and all sums are of master type M. Call with T explicit: layer_norm_forward<T>(...).

#include "nanotron/kernels/norm/row_segments.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// x, y (rows, columns); w, b (columns); statistics (2 rows): mean and rstd of each row, saved for backward.
/// y may alias x. maxima (rows): max |y| of each row (kernels/fp8/quantise.hpp); empty where not needed.
template <class T>
void layer_norm_forward(Device& device, Matrix<const T> x, Vector<const master_t<T>> w, Vector<const master_t<T>> b,
                        double eps, Matrix<T> y, Vector<master_t<T>> statistics, Vector<float> maxima = {});

/// sum_out = x + delta, rounded to T, and y is the norm of the rounded sum. sum_out may alias x or delta.
template <class T>
void add_layer_norm_forward(Device& device, Matrix<const T> x, Matrix<const T> delta, Matrix<T> sum_out,
                            Vector<const master_t<T>> w, Vector<const master_t<T>> b, double eps, Matrix<T> y,
                            Vector<master_t<T>> statistics, Vector<float> maxima = {});

/// With g = dy w and xh = (x - mean) rstd:
///   dx += rstd (g - mean(g) - xh mean(g xh))      dw += sum over rows of dy xh      db += sum over rows of dy
/// All three are accumulated; the sums over rows of dw and db run in a fixed order, by way of `workspace`.
template <class T>
void layer_norm_backward(Device& device, Matrix<const T> dy, Matrix<const T> x, Vector<const master_t<T>> w,
                         Vector<const master_t<T>> statistics, Matrix<T> dx, Vector<master_t<T>> dw,
                         Vector<master_t<T>> db, Vector<master_t<T>> workspace, const RowSegments& segments = {});

/// Elements of the workspace of layer_norm_backward; segments = tokens x heads of RowSegments.
index_t layer_norm_workspace_size(Processor processor, index_t rows, index_t columns, index_t segments = 1);

}  // namespace nanotron::kernels
