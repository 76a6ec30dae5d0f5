#pragma once

// The two norms of a row, and how the gradients of their weights are summed.

#include "nanotron/base/types.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// Weight gradients are summed over tokens x heads segments, as even as can be, longer ones first. The segments are
/// added in a tree (tensor/sum_order.hpp): first over the heads, then over the tokens.
struct RowSegments {
  index_t tokens = 1;
  index_t heads = 1;
};

/// The weights w (columns) of a norm, as the factor s of its rows: w, or 1 + w (Gemma), or 1 where there are none (w is
/// empty; so is the view of its gradient).
template <class M>
struct NormScale {
  Vector<const M> w{};
  bool adds_one = false;

  NormScale() = default;
  template <class View>
  NormScale(const View& weights, bool one_plus = false) : w(weights), adds_one(one_plus) {}
};

// Root mean square normalisation (Zhang and Sennrich, 2019) in Llama's order:
//
//   rstd = 1 / sqrt(mean(x^2) + eps)        y = (x rstd) s
//
// Weights, rstd and all sums are of master type M. Call with T explicit: rms_norm_forward<T>(...).

/// x, y (rows, columns); rstd (rows), saved for backward. y may alias x.
/// maxima (rows): max |y| of each row (kernels/fp8/quantise.hpp); empty where not needed.
template <class T>
void rms_norm_forward(Device& device, Matrix<const T> x, const NormScale<master_t<T>>& w, double eps, Matrix<T> y,
                      Vector<master_t<T>> rstd, Vector<float> maxima = {});

/// sum_out = x + delta, rounded to T, and y is the norm of the rounded sum. sum_out may alias x or
/// delta.
template <class T>
void add_rms_norm_forward(Device& device, Matrix<const T> x, Matrix<const T> delta, Matrix<T> sum_out,
                          const NormScale<master_t<T>>& w, double eps, Matrix<T> y, Vector<master_t<T>> rstd,
                          Vector<float> maxima = {});

/// With g = dy s and xh = x rstd:
///   dx += rstd (g - xh mean(g xh))          dw += sum over rows of dy xh
/// dx and dw are accumulated; the sum over rows of dw runs in a fixed order, by way of `workspace`.
template <class T>
void rms_norm_backward(Device& device, Matrix<const T> dy, Matrix<const T> x, const NormScale<master_t<T>>& w,
                       Vector<const master_t<T>> rstd, Matrix<T> dx, Vector<master_t<T>> dw,
                       Vector<master_t<T>> workspace, const RowSegments& segments = {});

/// The norm of a block's output: y = residual + norm(x), rounded once. y may alias residual.
template <class T>
void rms_norm_add_forward(Device& device, Matrix<const T> x, const NormScale<master_t<T>>& w, double eps,
                          Matrix<const T> residual, Matrix<T> y, Vector<master_t<T>> rstd);
/// As rms_norm_backward, but dx is overwritten; it may alias x.
template <class T>
void rms_norm_add_backward(Device& device, Matrix<const T> dy, Matrix<const T> x, const NormScale<master_t<T>>& w,
                           Vector<const master_t<T>> rstd, Matrix<T> dx, Vector<master_t<T>> dw,
                           Vector<master_t<T>> workspace, const RowSegments& segments = {});

/// Elements of the workspace of rms_norm_backward, and of head_rms_norm_backward(_parts) with rows = tokens x heads and
/// columns = head_dim; segments = tokens x heads of RowSegments.
index_t rms_norm_workspace_size(Processor processor, index_t rows, index_t columns, index_t segments = 1);

/// The same per head (Qwen3's QK norm): x, y (tokens, heads * head_dim), each with its own leading
/// dimension, so that they may be columns of a fused QKV buffer; w (head_dim); rstd (tokens, heads).
/// heads = rstd.extent(1). y may alias x.
template <class T>
void head_rms_norm_forward(Device& device, MatrixRef<const T> x, const NormScale<master_t<T>>& w, double eps,
                           MatrixRef<T> y, Matrix<master_t<T>> rstd);

/// dx is overwritten and may alias dy; dw is accumulated. x is the input of the forward.
template <class T>
void head_rms_norm_backward(Device& device, MatrixRef<const T> dy, MatrixRef<const T> x,
                            const NormScale<master_t<T>>& w, Matrix<const master_t<T>> rstd, MatrixRef<T> dx,
                            Vector<master_t<T>> dw, Vector<master_t<T>> workspace, const RowSegments& segments = {});
/// The same, but instead of dw returns its addends: (segments.tokens, head_dim), each a tree over the heads, in
/// `workspace`. kernels::add_tree adds them to dw.
template <class T>
Matrix<master_t<T>> head_rms_norm_backward_parts(Device& device, MatrixRef<const T> dy, MatrixRef<const T> x,
                                                 const NormScale<master_t<T>>& w, Matrix<const master_t<T>> rstd,
                                                 MatrixRef<T> dx, Vector<master_t<T>> workspace,
                                                 const RowSegments& segments);
/// The addends of each head: (token_segments x heads, head_dim), in `workspace` for as many segments.
template <class T>
Matrix<master_t<T>> head_rms_norm_backward_heads(Device& device, MatrixRef<const T> dy, MatrixRef<const T> x,
                                                 const NormScale<master_t<T>>& w, Matrix<const master_t<T>> rstd,
                                                 MatrixRef<T> dx, Vector<master_t<T>> workspace,
                                                 index_t token_segments);

// Layer normalisation (Ba, Kiros and Hinton, 2016):
//
//   mean = mean(x)      rstd = 1 / sqrt(mean((x - mean)^2) + eps)      y = (x - mean) rstd s + b
//
// Weights, biases, statistics and all sums are of master type M. Call with T explicit: layer_norm_forward<T>(...).

/// x, y (rows, columns); b (columns), or empty; statistics (2 rows): mean and rstd of each row, saved for backward.
/// y may alias x. maxima (rows): max |y| of each row (kernels/fp8/quantise.hpp); empty where not needed.
template <class T>
void layer_norm_forward(Device& device, Matrix<const T> x, const NormScale<master_t<T>>& w, Vector<const master_t<T>> b,
                        double eps, Matrix<T> y, Vector<master_t<T>> statistics, Vector<float> maxima = {});

/// sum_out = x + delta, rounded to T, and y is the norm of the rounded sum. sum_out may alias x or delta.
template <class T>
void add_layer_norm_forward(Device& device, Matrix<const T> x, Matrix<const T> delta, Matrix<T> sum_out,
                            const NormScale<master_t<T>>& w, Vector<const master_t<T>> b, double eps, Matrix<T> y,
                            Vector<master_t<T>> statistics, Vector<float> maxima = {});

/// With g = dy s and xh = (x - mean) rstd:
///   dx += rstd (g - mean(g) - xh mean(g xh))      dw += sum over rows of dy xh      db += sum over rows of dy
/// All three are accumulated; the sums over rows of dw and db run in a fixed order, by way of `workspace`.
template <class T>
void layer_norm_backward(Device& device, Matrix<const T> dy, Matrix<const T> x, const NormScale<master_t<T>>& w,
                         Vector<const master_t<T>> statistics, Matrix<T> dx, Vector<master_t<T>> dw,
                         Vector<master_t<T>> db, Vector<master_t<T>> workspace, const RowSegments& segments = {});

/// As rms_norm_add_forward and rms_norm_add_backward.
template <class T>
void layer_norm_add_forward(Device& device, Matrix<const T> x, const NormScale<master_t<T>>& w,
                            Vector<const master_t<T>> b, double eps, Matrix<const T> residual, Matrix<T> y,
                            Vector<master_t<T>> statistics);
template <class T>
void layer_norm_add_backward(Device& device, Matrix<const T> dy, Matrix<const T> x, const NormScale<master_t<T>>& w,
                             Vector<const master_t<T>> statistics, Matrix<T> dx, Vector<master_t<T>> dw,
                             Vector<master_t<T>> db, Vector<master_t<T>> workspace, const RowSegments& segments = {});

/// Elements of the workspace of layer_norm_backward; segments = tokens x heads of RowSegments.
index_t layer_norm_workspace_size(Processor processor, index_t rows, index_t columns, index_t segments = 1);

}  // namespace nanotron::kernels
