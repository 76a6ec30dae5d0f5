#pragma once

// q, k and v of multi-head latent attention (DeepSeek-V2, 2024, section 2.1) from the outputs of its projections. A
// query or key head is d = n + r wide: n elements without position, then r elements that RoPE rotates (R). The rotated
// part of the key is one for all heads:
//
//   q_h = [query_h,n | R query_h,r]      k_h = [key_h | R rope]      v_h = [value_h | 0]
//
// with query_h (n + r), [key_h | value_h] (n + w) and rope (r) of a token. Values are w <= d wide, and padded with
// zeros to the width of the keys.

#include <cstdint>

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

struct LatentHeads {
  index_t heads = 0;  // on this rank
  index_t nope = 0, rope = 0, value = 0;
  bool interleaved = false;  // R rotates the pairs 2i, 2i + 1; else i, i + r / 2

  index_t width() const { return nope + rope; }
};

/// R of each token: row t is at position positions(t). cosine, sine (max_positions, r / 2), see rotary.hpp; empty: R
/// changes nothing.
template <class T>
struct LatentRotation {
  Vector<const std::int32_t> positions{};
  Matrix<const master_t<T>> cosine{}, sine{};
};

/// query (tokens, heads x (n + r)), key_value (tokens, heads x (n + w)), rope (tokens, r) -> q, k, v (tokens, heads x
/// d), overwritten. Outputs alias no inputs.
template <class T>
void latent_forward(Device& device, const LatentHeads& heads, const LatentRotation<T>& rotation,
                    MatrixRef<const T> query, MatrixRef<const T> key_value, MatrixRef<const T> rope, MatrixRef<T> q,
                    MatrixRef<T> k, MatrixRef<T> v);

/// Of the gradients of q, k, v: dquery and dkey_value, overwritten.
template <class T>
void latent_backward(Device& device, const LatentHeads& heads, const LatentRotation<T>& rotation, MatrixRef<const T> dq,
                     MatrixRef<const T> dk, MatrixRef<const T> dv, MatrixRef<T> dquery, MatrixRef<T> dkey_value);
/// The same: drope, overwritten, the sum over the heads. It is computed for `segments` equal segments of the heads,
/// each rounded to T; these are added in a tree (tensor/sum_order.hpp).
template <class T>
void latent_rope_backward(Device& device, const LatentHeads& heads, const LatentRotation<T>& rotation,
                          MatrixRef<const T> dk, MatrixRef<T> drope, index_t segments);

/// y_h <- R x_h for `count` heads: x_h begins at column h x_stride of x, y_h at h y_stride of y. Not in place.
template <class T>
void latent_rotate(Device& device, const LatentHeads& heads, const LatentRotation<T>& rotation, index_t count,
                   MatrixRef<const T> x, index_t x_stride, MatrixRef<T> y, index_t y_stride);

}  // namespace nanotron::kernels
