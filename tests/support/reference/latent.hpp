#pragma once

// Reference implementation of kernels/attention/latent, see reference/gemm.hpp. One token; the rotation is a matrix.

#include <cmath>
#include <vector>

#include "nanotron/kernels/attention/latent.hpp"

namespace nanotron::kernels::reference {

/// R (r, r) of the angles of the r / 2 pairs, by rows.
inline std::vector<double> latent_rotation(const LatentHeads& h, const std::vector<double>& angles) {
  std::vector<double> turn(static_cast<std::size_t>(h.rope * h.rope), 0.0);
  for (index_t i = 0; i < h.rope / 2; ++i) {
    const index_t a = h.interleaved ? 2 * i : i, b = h.interleaved ? 2 * i + 1 : i + h.rope / 2;
    const double angle = angles[static_cast<std::size_t>(i)];
    const auto at = [&](index_t row, index_t column) -> double& {
      return turn[static_cast<std::size_t>(row * h.rope + column)];
    };
    at(a, a) = at(b, b) = std::cos(angle);
    at(a, b) = -std::sin(angle);
    at(b, a) = std::sin(angle);
  }
  return turn;
}

/// The matrix A of (q | k | v) = A (query | key_value | rope), by rows.
struct LatentMatrix {
  index_t rows, columns;
  std::vector<double> elements;
  double& at(index_t row, index_t column) { return elements[static_cast<std::size_t>(row * columns + column)]; }
  double at(index_t row, index_t column) const { return elements[static_cast<std::size_t>(row * columns + column)]; }
};
inline LatentMatrix latent_matrix(const LatentHeads& h, const std::vector<double>& angles) {
  const index_t d = h.width(), both = h.nope + h.value, queries = h.heads * d, key_values = h.heads * both;
  LatentMatrix m{3 * queries, queries + key_values + h.rope, {}};
  m.elements.assign(static_cast<std::size_t>(m.rows * m.columns), 0.0);
  const std::vector<double> turn = latent_rotation(h, angles);
  for (index_t head = 0; head < h.heads; ++head) {
    for (index_t i = 0; i < h.nope; ++i) {
      m.at(head * d + i, head * d + i) = 1.0;
      m.at(queries + head * d + i, queries + head * both + i) = 1.0;
    }
    for (index_t i = 0; i < h.rope; ++i) {
      for (index_t j = 0; j < h.rope; ++j) {
        const double r = turn[static_cast<std::size_t>(i * h.rope + j)];
        m.at(head * d + h.nope + i, head * d + h.nope + j) = r;
        m.at(queries + head * d + h.nope + i, queries + key_values + j) = r;
      }
    }
    for (index_t i = 0; i < h.value; ++i) m.at(2 * queries + head * d + i, queries + head * both + h.nope + i) = 1.0;
  }
  return m;
}

}  // namespace nanotron::kernels::reference
