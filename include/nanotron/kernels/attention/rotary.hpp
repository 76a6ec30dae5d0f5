#pragma once

// Rotary position embedding (RoPE, Su et al. 2021) in the rotate-half convention of Llama. In a head of
// width d, at position p, the elements i and i + d/2, i < d/2, are rotated by a = p theta^(-2i/d):
//
//   y_i = x_i cos a - x_(i+d/2) sin a      y_(i+d/2) = x_(i+d/2) cos a + x_i sin a

#include <cstdint>

#include "nanotron/kernels/attention/rotary_scaling.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// cosine, sine (max_positions, head_dim / 2), overwritten by scaling.magnitude() times cos a and sin a;
/// computed in fp64, rounded once. M is double or float.
template <class M>
void rotary_tables(Device& device, double theta, Matrix<M> cosine, Matrix<M> sine, const RotaryScaling& scaling = {});

/// x (tokens, heads * head_dim) in place; row t is at position positions(t) < max_positions.
/// head_dim = 2 * cosine.extent(1); x.columns is a multiple of it.
template <class T>
void rotary_forward(Device& device, MatrixRef<T> x, Vector<const std::int32_t> positions,
                    Matrix<const master_t<T>> cosine, Matrix<const master_t<T>> sine);

/// x (tokens, q | k | v) += bias (x.columns), then the heads in its first `rotated` columns as rotary_forward; rounded
/// to T once.
template <class T>
void bias_rotary_forward(Device& device, MatrixRef<T> x, index_t rotated, Vector<const master_t<T>> bias,
                         Vector<const std::int32_t> positions, Matrix<const master_t<T>> cosine,
                         Matrix<const master_t<T>> sine);

/// The transpose of rotary_forward (rotation by -a), in place on the gradient.
template <class T>
void rotary_backward(Device& device, MatrixRef<T> dx, Vector<const std::int32_t> positions,
                     Matrix<const master_t<T>> cosine, Matrix<const master_t<T>> sine);

}  // namespace nanotron::kernels
