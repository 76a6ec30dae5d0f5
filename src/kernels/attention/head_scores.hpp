#pragma once

// The map of scores (score_map.hpp) of one query head, as the kernels of attention apply it to tiles. Forward maps the
// scores. Backward also replaces dp_ij = do_i . v_j, so that
//
//   p_ij (dp_ij - do_i . o_i)
//
// is the gradient of x and not of s: dp <- (dp - dot) ds/dx + dot.

#include <cmath>

#include "nanotron/kernels/attention/attention.hpp"

#include "nanotron/base/elementary/hyperbolic.hpp"

namespace nanotron::kernels {

template <class M>
struct HeadScores {
  M scale, cap, inverse_cap, slope;
  index_t offset;  // position of query 0 minus that of key 0

  /// Of a query head on this rank, in a kernel that has products of which x is `x_of_product` times.
  NANOTRON_FUNCTION HeadScores(const AttentionShape& s, index_t head, M x_of_product)
      : scale(x_of_product),
        cap(static_cast<M>(s.scores.cap)),
        inverse_cap(s.scores.cap > 0.0 ? static_cast<M>(1.0 / s.scores.cap) : M(0)),
        slope(static_cast<M>(s.scores.slope(s.first_query_head + head))),
        offset(s.query_position - s.key_position) {}

  /// s of the product of a query and a key, counted from the first ones of the shape.
  NANOTRON_FUNCTION M score(M product, index_t query, index_t key) const {
    const M x = scale * product;
    const M capped = cap > 0 ? cap * hyperbolic_tangent(x * inverse_cap) : x;
    return capped - slope * static_cast<M>(offset + query - key);
  }
  /// ds/dx.
  NANOTRON_FUNCTION M rise(M product) const {
    if (!(cap > 0)) return M(1);
    const M t = hyperbolic_tangent(scale * product * inverse_cap);
    return M(1) - t * t;
  }
};

}  // namespace nanotron::kernels
