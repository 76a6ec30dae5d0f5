#pragma once

// The GEMMs of a linear layer with a frozen weight W (out, in) and adapters of rank r (LoRA, Hu et al. 2021). A layer
// of several projections has an A and a B for each that is adapted; c = alpha / r:
//
//   y = x W^T + c (x A^T) B^T          A (r, in), B (out, r)
//   dx = dy W + c u A,  u = dy B
//   dA += c u^T x                      dB += c dy^T (x A^T)
//
// x A^T and u are computed again where they are read: they cost r / in of the GEMM of W.
//
// On tensor-parallel ranks nothing here communicates, as with W alone:
//
//   column parallel   A replicated, B sharded by out: dA is a partial sum
//   row parallel      A sharded by in, B replicated: y is a partial sum, as x W^T is; dB is a partial sum
//
// model::PartialGradients all-reduces dA and dB.
//
// With sums in a fixed order (tensor/sum_order.hpp, LoraSums) the partial sums of rank r are added over the ranks
// first, in a tree: u of a column-parallel layer, x A^T of a row-parallel one. What follows from the whole sum is added
// once:
//
//   column parallel   dx = sum over ranks of dy W + c u A             dA += (c u)^T x, the same on every rank
//   row parallel      y = sum over ranks of x W^T + c (x A^T) B^T     dB += dy^T (c x A^T), the same on every rank
//
// There c multiplies terms of the sums over tokens, not partial sums of them, of which other grids have others.

#include <vector>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/nn/linear/linear.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::nn {

/// Of one projection.
template <class T>
struct LoraOutput {
  Range columns;        // of y
  Matrix<const T> b{};  // (columns, r)
  Matrix<master_t<T>> b_gradient{};
  SumOrder order{};  // of the sum over these columns
};

/// A fixed order. One of the groups: that of a row-parallel layer adds x A^T, that of a column-parallel one u; it must
/// outlive the layer. Both null: no order, see above.
struct LoraSums {
  SumOrder in{}, tokens{};  // over features of x, and over tokens
  comm::Group* inner = nullptr;
  comm::Group* gradient = nullptr;

  bool are_ordered() const { return inner != nullptr || gradient != nullptr; }
};

/// The A of all projections, one above the other, and their B.
template <class T>
struct LoraWeights {
  Matrix<const T> a{};  // (outputs * r, in)
  Matrix<master_t<T>> a_gradient{};
  std::vector<LoraOutput<T>> outputs{};
  double scale = 1.0;  // c
};

/// x A^T and u of all tokens and the layer with the most projections. Shared by all layers; each overwrites it.
template <class T>
struct LoraWorkspace {
  Vector<T> inner{}, gradient{};
  Vector<T> summed{};   // what add_to_sum reads, of the same size; empty without an order
  Vector<T> columns{};  // dy of the widest projection; of floats on a host, else empty
};

template <class T>
class LoraLinear final : public LinearGemms<T> {
 public:
  LoraLinear(LoraWeights<T> weights, const LoraWorkspace<T>& work, const LoraSums& sums = {})
      : w_(std::move(weights)), work_(work), sums_(sums) {}

  void multiply(Device& device, const RowGemm<T>& gemm, Matrix<const T> x, Matrix<T> y, index_t chunk) const override;
  /// dA and dB. gradient: of W, which has none.
  void backward_weight(Device& device, Matrix<const T> dy, Matrix<const T> x, const OperandCodes& of_x,
                       Matrix<master_t<T>> gradient) const override;

  bool adds_to_sum(const RowGemm<T>& gemm) const override;
  void add_to_sum(Device& device, const RowGemm<T>& gemm, const Range& tokens, const MatrixRef<T>& y) const override;
  GemmTraffic traffic(index_t tokens) const override;

 private:
  void inner_of(Device& device, Matrix<const T> x, Matrix<const T> a, const Matrix<T>& inner) const;
  void gradient_of(Device& device, Matrix<const T> dy, const Matrix<T>& u) const;
  void add_product(Device& device, kernels::Op op, const Matrix<const T>& inner, const MatrixRef<T>& y) const;
  Matrix<T> first_rows(const Vector<T>& buffer, std::size_t rows, index_t columns) const;
  Matrix<T> rows_to_sum(const Range& tokens) const;
  index_t columns() const { return static_cast<index_t>(w_.a.extent(0)); }  // of x A^T and u
  MatrixRef<const T> packed(Device& device, MatrixRef<const T> columns) const;

  LoraWeights<T> w_;
  LoraWorkspace<T> work_;
  LoraSums sums_;
};

}  // namespace nanotron::nn
