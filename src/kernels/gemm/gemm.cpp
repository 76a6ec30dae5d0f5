#include "nanotron/kernels/gemm/gemm.hpp"

#include "kernels/gemm/gemm_backend.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {
namespace {

constexpr std::size_t cublas_workspace = std::size_t{32} << 20;  // what cuBLAS recommends for Hopper

// C = beta C, for k = 0.
template <class C>
void scale_only(Device& device, double beta, MatrixRef<C> c) {
  using M = master_t<C>;
  const M factor = static_cast<M>(beta);
  for_each_row(
      device, "gemm_scale", c.rows, KOKKOS_LAMBDA(const Row& row, const index_t i) {
        C* const target = c.data + i * c.leading;
        row.for_each(c.columns, [=](const index_t j) {
          target[j] = factor == M(0) ? C(0.0f) : static_cast<C>(static_cast<M>(target[j]) * factor);
        });
      });
}

// Every operand once; C is read where it is added to.
template <class T, class C>
Work work_of(index_t m, index_t n, index_t k, double beta, index_t count) {
  const double a = static_cast<double>(m) * static_cast<double>(k), b = static_cast<double>(k) * static_cast<double>(n);
  const double c = static_cast<double>(m) * static_cast<double>(n), all = static_cast<double>(count);
  return {.read = all * ((a + b) * sizeof(T) + (beta != 0.0 ? c * sizeof(C) : 0.0)),
          .written = all * c * sizeof(C),
          .flops = all * 2.0 * a * static_cast<double>(n),
          .type = scalar_type_of<T>,
          .gemm = {m, n, k, count}};
}

template <class T, class C>
detail::GemmProblem problem_of(Op op_a, Op op_b, const MatrixRef<const T>& a, const MatrixRef<const T>& b,
                               const MatrixRef<C>& c) {
  const index_t m = op_a == Op::none ? a.rows : a.columns;
  const index_t k = op_a == Op::none ? a.columns : a.rows;
  const index_t n = op_b == Op::none ? b.columns : b.rows;
  NANOTRON_REQUIRE(k == (op_b == Op::none ? b.rows : b.columns) && c.rows == m && c.columns == n,
                   "gemm: op(A) is {} x {}, op(B) is {} x {}, C is {} x {}", m, k,
                   op_b == Op::none ? b.rows : b.columns, n, c.rows, c.columns);
  return {op_a, op_b, m, n, k, a.leading, b.leading, c.leading, 1.0, 0.0};
}

}  // namespace

template <class T, class C>
void gemm(Device& device, Op op_a, Op op_b, double alpha, MatrixRef<const T> a, MatrixRef<const T> b, double beta,
          MatrixRef<C> c, const SumOrder& order) {
  detail::GemmProblem p = problem_of(op_a, op_b, a, b, c);
  if (p.m == 0 || p.n == 0) return;
  p.alpha = alpha;
  p.beta = beta;
  const KernelRegion kernel(device, "gemm", work_of<T, C>(p.m, p.n, p.k, beta, 1));
  if (device.is_planning()) return device.launch_planned();
  if (p.k == 0) return scale_only(device, beta, c);
  if (device.gemm_mode() == GemmMode::fixed_order) {
    detail::multiply_in_order<T, C>(device, p, order, a.data, b.data, c.data);
  } else {
    detail::multiply<T, C>(device, p, a.data, b.data, c.data);
  }
}

template <class T>
void gemm_add(Device& device, Op op_a, Op op_b, MatrixRef<const T> a, MatrixRef<const T> b, MatrixRef<const T> d,
              MatrixRef<T> c, const SumOrder& order) {
  detail::GemmProblem p = problem_of(op_a, op_b, a, b, c);
  NANOTRON_REQUIRE(d.rows == c.rows && d.columns == c.columns && d.leading == c.leading,
                   "gemm_add: C is {} x {}, rows {} apart, D is {} x {}, rows {} apart", c.rows, c.columns, c.leading,
                   d.rows, d.columns, d.leading);
  if (p.m == 0 || p.n == 0) return;
  if constexpr (built_for == Processor::gpu) {
    if (device.gemm_mode() == GemmMode::library && p.k > 0) {
      p.beta = 1.0;
      const KernelRegion kernel(device, "gemm", work_of<T, T>(p.m, p.n, p.k, p.beta, 1));
      if (device.is_planning()) return device.launch_planned();
      return detail::multiply_plus<T, T>(device, p, a.data, b.data, d.data, c.data);
    }
  }
  if (d.data != c.data) copy_matrix<T>(device, d, c);
  gemm<T, T>(device, op_a, op_b, 1.0, a, b, 1.0, c, order);
}
#define NANOTRON_INSTANTIATE(T)                                                                                        \
  template void gemm_add<T>(Device&, Op, Op, MatrixRef<const T>, MatrixRef<const T>, MatrixRef<const T>, MatrixRef<T>, \
                            const SumOrder&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

template <class T, class C>
void gemm_batched(Device& device, const BatchedShape& s, const T* const* a, const T* const* b, C* const* c,
                  index_t count) {
  if (count == 0 || s.m == 0 || s.n == 0) return;
  const KernelRegion kernel(device, "gemm_batched", work_of<T, C>(s.m, s.n, s.k, s.beta, count));
  if (device.is_planning()) return device.launch_planned();
  const detail::GemmProblem p{s.op_a, s.op_b, s.m, s.n, s.k, s.leading_a, s.leading_b, s.leading_c, s.alpha, s.beta};
  if (device.gemm_mode() == GemmMode::fixed_order) {
    detail::multiply_batch_in_order<T, C>(device, p, a, b, c, count);
  } else {
    detail::multiply_batch<T, C>(device, p, s.alignment, a, b, c, count);
  }
}

template <class T>
std::size_t gemm_workspace_bytes(GemmMode gemm_mode, Processor processor, index_t m, index_t n, index_t k) {
  if constexpr (built_for == Processor::cpu) {
    if (processor == Processor::cpu) {
      return gemm_mode == GemmMode::library ? detail::library_workspace_bytes<T>(m, n, k)
                                            : detail::fixed_order_workspace_bytes<T>(k);
    }
  }
  return gemm_mode == GemmMode::library ? cublas_workspace : 0;
}
#define NANOTRON_INSTANTIATE(T) \
  template std::size_t gemm_workspace_bytes<T>(GemmMode, Processor, index_t, index_t, index_t);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

#define NANOTRON_INSTANTIATE(T, C)                                                                                \
  template void gemm<T, C>(Device&, Op, Op, double, MatrixRef<const T>, MatrixRef<const T>, double, MatrixRef<C>, \
                           const SumOrder&);                                                                      \
  template void gemm_batched<T, C>(Device&, const BatchedShape&, const T* const*, const T* const*, C* const*, index_t);
NANOTRON_FOR_GEMM_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
