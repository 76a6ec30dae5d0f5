#include "nanotron/kernels/gemm/gemm_fp8.hpp"

#include "kernels/gemm/gemm_fp8_backend.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/tensor/kernel_region.hpp"

namespace nanotron::kernels {
namespace {

constexpr std::size_t alignment = 256;  // of a GEMM workspace

std::size_t bytes_of_values(index_t rows, index_t columns) {
  return (static_cast<std::size_t>(rows * columns) * sizeof(bf16) + alignment - 1) / alignment * alignment;
}

// What the tensor cores demand besides the padding of the codes.
template <class C>
bool is_aligned(const MatrixRef<C>& c) {
  const auto is_multiple_of_16_bytes = [](std::size_t bytes) { return bytes % 16 == 0; };
  return c.columns % fp8_padding == 0 && is_multiple_of_16_bytes(static_cast<std::size_t>(c.leading) * sizeof(C)) &&
         is_multiple_of_16_bytes(reinterpret_cast<std::uintptr_t>(c.data));
}

// Scales of parts need rows of A in eights (Transformer Engine 2.20, common/gemm/cublaslt_gemm.cu), and not both of
// blocks.
constexpr index_t rows_with_tiles = 8;

bool has_block_scales() {
  if constexpr (detail::has_fp8_gemms) return detail::has_block_scales();
  return true;
}

template <class A>
bool has_scales(const Fp8Operand<A>& a, const Fp8Operand<e4m3>& b, index_t m) {
  if (a.scaling == Fp8Scaling::tensor && b.scaling == Fp8Scaling::tensor) return true;
  return a.scaling == Fp8Scaling::tiles && m % rows_with_tiles == 0 && has_block_scales();
}

// The values of both operands at the end of the GEMM workspace, for the duration of a scope.
class Values {
 public:
  Values(Device& device, index_t m, index_t n, index_t k) : device_(device), all_(device.gemm_workspace()) {
    const std::size_t of_a = bytes_of_values(m, k), of_b = bytes_of_values(n, k);
    NANOTRON_REQUIRE(of_a + of_b <= all_.extent(0), "an FP8 GEMM of {} x {} x {} with a workspace of {} bytes", m, n, k,
                     all_.extent(0));
    const std::size_t rest = (all_.extent(0) - of_a - of_b) / alignment * alignment;
    a = Matrix<bf16>(reinterpret_cast<bf16*>(all_.data() + rest), m, k);
    b = Matrix<bf16>(reinterpret_cast<bf16*>(all_.data() + rest + of_a), n, k);
    device_.set_gemm_workspace(Vector<std::byte>(all_.data(), rest));
  }
  ~Values() { device_.set_gemm_workspace(all_); }
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;

  Matrix<bf16> a, b;

 private:
  Device& device_;
  Vector<std::byte> all_;
};

template <class A, class C>
Work work_of(const Fp8Operand<A>& a, const Fp8Operand<e4m3>& b, double beta, const MatrixRef<C>& c) {
  const double of_c = bytes_of(c), k = static_cast<double>(a.codes.extent(1));
  return {.read = bytes_of(a.codes) + bytes_of(b.codes) + (beta != 0.0 ? of_c : 0.0),
          .written = of_c,
          .flops = 2.0 * static_cast<double>(c.rows) * static_cast<double>(c.columns) * k,
          .type = ScalarType::fp8,
          .gemm = {c.rows, c.columns, static_cast<index_t>(k), 1}};
}

// C = A B^T + beta D, beta 0 or 1; D has C's shape.
template <class A, class C>
void multiply(Device& device, const Fp8Operand<A>& a, const Fp8Operand<e4m3>& b, double beta,
              const MatrixRef<const C>& d, const MatrixRef<C>& c) {
  const auto k = static_cast<index_t>(a.codes.extent(1));
  NANOTRON_REQUIRE(static_cast<index_t>(b.codes.extent(1)) == k && static_cast<index_t>(a.codes.extent(0)) == c.rows &&
                       static_cast<index_t>(b.codes.extent(0)) == c.columns && k % fp8_padding == 0,
                   "gemm_fp8: A is {} x {}, B is {} x {}, C is {} x {}", a.codes.extent(0), k, b.codes.extent(0),
                   b.codes.extent(1), c.rows, c.columns);
  NANOTRON_REQUIRE(device.gemm_mode() == GemmMode::library, "an FP8 GEMM in a fixed order");
  NANOTRON_REQUIRE((a.scaling == Fp8Scaling::tensor) == (b.scaling == Fp8Scaling::tensor),
                   "gemm_fp8: one operand has one scale, the other several");
  if (c.rows == 0 || c.columns == 0) return;
  const KernelRegion kernel(device, "gemm_fp8", work_of(a, b, beta, c));
  if (device.is_planning()) return device.launch_planned();
  if constexpr (detail::has_fp8_gemms) {
    if (is_aligned(c) && is_aligned(d) && k > 0 && has_scales(a, b, c.rows)) {
      const detail::GemmProblem p{Op::none, Op::transpose, c.rows, c.columns, k, k, k, c.leading, 1.0, beta};
      if (detail::multiply_fp8<A, C>(device, p, a.codes.data(), {a.scale, a.scaling}, b.codes.data(),
                                     {b.scale, b.scaling}, d.data, c.data)) {
        return;
      }
      NANOTRON_REQUIRE(detail::may_lack_fp8_gemms, "the library has no FP8 GEMM of {} x {} x {}", p.m, p.n, p.k);
    }
  }
  const Values values(device, c.rows, c.columns, k);
  dequantise<A>(device, a, values.a);
  dequantise<e4m3>(device, b, values.b);
  if constexpr (std::is_same_v<C, bf16>) {
    if (d.data != c.data) return gemm_add<bf16>(device, Op::none, Op::transpose, values.a, values.b, d, c);
  }
  gemm<bf16, C>(device, Op::none, Op::transpose, 1.0, values.a, values.b, beta, c);
}

}  // namespace

template <class A, class C>
void gemm_fp8(Device& device, const Fp8Operand<A>& a, const Fp8Operand<e4m3>& b, double beta, MatrixRef<C> c) {
  multiply<A, C>(device, a, b, beta, c, c);
}

void gemm_fp8_add(Device& device, const Fp8Operand<e4m3>& a, const Fp8Operand<e4m3>& b, MatrixRef<const bf16> d,
                  MatrixRef<bf16> c) {
  NANOTRON_REQUIRE(d.rows == c.rows && d.columns == c.columns && d.leading == c.leading,
                   "gemm_fp8_add: C is {} x {}, rows {} apart, D is {} x {}, rows {} apart", c.rows, c.columns,
                   c.leading, d.rows, d.columns, d.leading);
  multiply<e4m3, bf16>(device, a, b, 1.0, d, c);
}

std::size_t gemm_fp8_workspace_bytes(Processor processor, const Fp8GemmSizes& s) {
  const index_t padded = fp8_padded(s.k);
  const std::size_t library = gemm_workspace_bytes<bf16>(GemmMode::library, processor, s.m, s.n, padded);
  const bool has_scales =
      s.scaling_of_a == Fp8Scaling::tensor || (s.m_step % rows_with_tiles == 0 && has_block_scales());
  const bool is_planned_for = built_for == Processor::cpu || (detail::has_fp8_gemms && !detail::may_lack_fp8_gemms);
  if (processor == Processor::gpu && is_planned_for && s.n % fp8_padding == 0 && has_scales) return library;
  return library + bytes_of_values(s.m, padded) + bytes_of_values(s.n, padded);
}

#define NANOTRON_INSTANTIATE(A, C) \
  template void gemm_fp8<A, C>(Device&, const Fp8Operand<A>&, const Fp8Operand<e4m3>&, double, MatrixRef<C>);
NANOTRON_INSTANTIATE(e4m3, bf16)
NANOTRON_INSTANTIATE(e4m3, float)
NANOTRON_INSTANTIATE(e5m2, bf16)
NANOTRON_INSTANTIATE(e5m2, float)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
