#include "nanotron/parallel/reducers/adasum/adasum_plan.hpp"

#include <algorithm>
#include <cmath>

#include "nanotron/kernels/reduction/gram.hpp"

namespace nanotron::parallel {
namespace {

constexpr double cancelled = 1e-12;  // (1e-6)^2, since it applies to squares

class Tree {
 public:
  Tree(std::span<const double> gram, std::span<double> coefficients) : gram_(gram), coefficients_(coefficients) {}

  void solve(const Range& leaves) {
    if (leaves.size() == 1) {
      coefficients_[static_cast<std::size_t>(leaves.begin)] = 1.0;
      return;
    }
    const index_t middle = leaves.begin + (leaves.size() + 1) / 2;
    const Range a{leaves.begin, middle}, b{middle, leaves.end};
    solve(a);
    solve(b);
    const double product = inner(a, b).value;
    const double of_a = part(product, inner(a, a)), of_b = part(product, inner(b, b));
    scale(a, of_a);
    scale(b, of_b);
  }

 private:
  struct Sum {
    double value = 0.0, size = 0.0;  // size: sum of the absolute terms
  };

  Sum inner(const Range& a, const Range& b) const {
    Sum sum;
    for (index_t i = a.begin; i < a.end; ++i) {
      for (index_t j = b.begin; j < b.end; ++j) {
        const auto at = static_cast<std::size_t>(kernels::gram_pairs(std::max(i, j)) + std::min(i, j));
        const double term =
            coefficients_[static_cast<std::size_t>(i)] * coefficients_[static_cast<std::size_t>(j)] * gram_[at];
        sum.value += term;
        sum.size += std::abs(term);
      }
    }
    return sum;
  }
  static double part(double product, const Sum& square) {
    return square.value <= cancelled * square.size ? 1.0 : 1.0 - product / (2.0 * square.value);
  }
  void scale(const Range& leaves, double factor) {
    for (index_t i = leaves.begin; i < leaves.end; ++i) coefficients_[static_cast<std::size_t>(i)] *= factor;
  }

  std::span<const double> gram_;
  std::span<double> coefficients_;
};

}  // namespace

std::vector<AdasumTensor> adasum_tensors(const model::ParameterTable& table) {
  std::vector<AdasumTensor> tensors;
  for (const nn::ParameterSpec& spec : table.specs) {
    const bool whole = spec.owned == spec.local;  // else a contiguous range of rows; columns are never stored twice
    const index_t skip = whole ? 0 : (spec.owned.begin - spec.local.begin) * spec.columns;
    const index_t count = whole ? spec.local_size() : spec.owned.size() * spec.columns;
    for (index_t layer = 0; layer < spec.local_layers(); ++layer) {
      const index_t begin = spec.offset_of(layer);
      tensors.push_back({{begin, begin + spec.local_size()}, {begin + skip, begin + skip + count}});
    }
  }
  return tensors;
}

index_t combined_size(index_t size, int replicas) { return (size + replicas - 1) / replicas; }

Range combined_range(index_t size, int replicas, int rank) {
  const index_t shard = combined_size(size, replicas);
  return {std::min(size, rank * shard), std::min(size, (rank + 1) * shard)};
}

void adasum_coefficients(std::span<const double> gram, std::span<double> coefficients) {
  Tree(gram, coefficients).solve({0, static_cast<index_t>(coefficients.size())});
}

}  // namespace nanotron::parallel
