#pragma once

// The bias of an expert's down projection. The weight w of a row applies before the projection (nn/moe/moe.hpp), so
// here it multiplies the bias:
//
//   y_r += w_r b        dw_r += sum_c dy_rc b_c        db_c += sum_r w_r dy_rc

#include <cstdint>

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// y (rows, columns), weights (rows), bias (columns).
template <class T>
void add_weighted_bias(Device& device, Vector<const master_t<T>> weights, Vector<const master_t<T>> bias, Matrix<T> y);

/// dweights (rows): added to.
template <class T>
void add_bias_dots(Device& device, Matrix<const T> dy, Vector<const master_t<T>> bias, Vector<master_t<T>> dweights);

/// y = w x, both (rows, columns). db is the sum of its rows, see bias_backward.
template <class T>
void scale_rows(Device& device, Matrix<const T> x, Vector<const master_t<T>> weights, Matrix<T> y);

/// As bias_backward, whose segments begin at cuts (segments + 1), in MemorySpace. Some may be empty.
template <class T>
void cut_bias_backward(Device& device, Matrix<const T> dy, const std::int64_t* cuts, index_t segments,
                       Vector<master_t<T>> dbias, Vector<master_t<T>> workspace);

}  // namespace nanotron::kernels
