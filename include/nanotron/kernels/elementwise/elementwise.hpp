#pragma once

// Elementwise operations. Call with T (or M) explicit.

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// x = value. T may be std::int64_t too.
template <class T>
void fill(Device& device, Vector<T> x, double value);

/// x(i) = a standard normal number, a function of the key `stream` and of i only. M is double or float.
template <class M>
void fill_normal(Device& device, Vector<M> x, std::uint32_t stream);

/// y += x.
template <class T>
void add(Device& device, Vector<const T> x, Vector<T> y);

/// y(i) = (((y(i) + x(0, i)) + x(1, i)) + ...) in M, which is double or float; x (rows, n), y (n).
template <class M>
void add_rows(Device& device, Matrix<const bf16> x, Vector<M> y);

/// y(c) += the binary tree over the rows r of x(r, c) (tensor/sum_order.hpp). M is double or float.
template <class M>
void add_tree(Device& device, MatrixRef<const M> x, Vector<M> y);

/// y(r, c) = the binary tree over a < k of x(r, a n + c), in master_t<T>, rounded once: x (rows, k n), y (rows, n). No
/// aliasing.
template <class T>
void add_column_tree(Device& device, MatrixRef<const T> x, MatrixRef<T> y);

/// y = factor x + z, and y = factor x, rounded to T once. y may be z, or x.
template <class T>
void add_scaled(Device& device, double factor, Matrix<const T> x, Matrix<const T> z, Matrix<T> y);
template <class T>
void scale(Device& device, double factor, Matrix<const T> x, Matrix<T> y);

/// x <-> y. T is double or float.
template <class T>
void swap(Device& device, Vector<T> x, Vector<T> y);

/// y(r, c) += bias(c).
template <class T>
void bias_add(Device& device, MatrixRef<T> y, Vector<const master_t<T>> bias);

/// dbias(c) += sum over rows of dy(r, c), in a fixed order: one sum per segment of rows / segments rows, and
/// the segments in a tree (tensor/sum_order.hpp). workspace has bias_workspace_size(processor, rows of dy, columns,
/// segments).
template <class T>
void bias_backward(Device& device, MatrixRef<const T> dy, Vector<master_t<T>> dbias, Vector<master_t<T>> workspace,
                   index_t segments = 1);
index_t bias_workspace_size(Processor processor, index_t rows, index_t columns, index_t segments = 1);

/// to = from, both (rows, columns), each with its own leading dimension. No aliasing.
template <class T>
void copy_matrix(Device& device, MatrixRef<const T> from, MatrixRef<T> to);

/// to = from, of equal extents. No aliasing.
template <class T>
void copy(Device& device, Vector<const T> from, Vector<T> to);

/// y = x, rounded to nearest even, both (n). A and B are any of double, float and bf16; call with
/// both explicit. No aliasing.
template <class A, class B>
void cast(Device& device, Vector<const A> x, Vector<B> y);

/// maxima (rows): max |x| of each row of x; infinity where an element is not a number.
template <class T>
void row_maxima(Device& device, Matrix<const T> x, Vector<float> maxima);

}  // namespace nanotron::kernels
