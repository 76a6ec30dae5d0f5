#pragma once

// Newton and Schulz in plain loops and fp64, for tests: the formulas of kernels/optim/muon.hpp as they stand.

#include <algorithm>
#include <cmath>
#include <vector>

#include "nanotron/base/types.hpp"

namespace nanotron::kernels::reference {

/// Row-major (rows, columns).
struct Plain {
  index_t rows = 0, columns = 0;
  std::vector<double> at;

  Plain(index_t r, index_t c) : rows(r), columns(c), at(static_cast<std::size_t>(r * c), 0.0) {}
  double& operator()(index_t r, index_t c) { return at[static_cast<std::size_t>(r * columns + c)]; }
  double operator()(index_t r, index_t c) const { return at[static_cast<std::size_t>(r * columns + c)]; }
};

inline Plain transposed(const Plain& x) {
  Plain y(x.columns, x.rows);
  for (index_t r = 0; r < x.rows; ++r) {
    for (index_t c = 0; c < x.columns; ++c) y(c, r) = x(r, c);
  }
  return y;
}

inline Plain product(const Plain& a, const Plain& b) {
  Plain y(a.rows, b.columns);
  for (index_t r = 0; r < a.rows; ++r) {
    for (index_t c = 0; c < b.columns; ++c) {
      for (index_t k = 0; k < a.columns; ++k) y(r, c) += a(r, k) * b(k, c);
    }
  }
  return y;
}

inline Plain orthogonalise(Plain x, int steps) {
  if (x.rows > x.columns) return transposed(orthogonalise(transposed(x), steps));
  double squares = 0.0;
  for (const double e : x.at) squares += e * e;
  for (double& e : x.at) e /= std::max(std::sqrt(squares), 1e-7);
  for (int step = 0; step < steps; ++step) {
    const Plain a = product(x, transposed(x)), aa = product(a, a);
    Plain b(a.rows, a.rows);
    for (std::size_t i = 0; i < b.at.size(); ++i) b.at[i] = -4.7750 * a.at[i] + 2.0315 * aa.at[i];
    const Plain bx = product(b, x);
    for (std::size_t i = 0; i < x.at.size(); ++i) x.at[i] = 3.4445 * x.at[i] + bx.at[i];
  }
  return x;
}

}  // namespace nanotron::kernels::reference
