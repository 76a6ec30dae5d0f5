// Which library runs which GEMM, as measured for h = 512 on one core of Sapphire Rapids and of Zen 4:
//   fp64  BLAS
//   fp32  oneDNN: 115 GFLOP/s, against 70 of an older OpenBLAS that falls back to AVX2 kernels.
//         A^T B uses its matmul, which transposes A first; the rest uses its sgemm.
//   bf16  own tiles (gemm_tiles_host.cpp) where the processor has them: AMX 870 GFLOP/s, AVX-512 219 against 204 of
//         oneDNN; for few rows oneDNN's matmul; without bf16 instructions fp32 GEMM of the widened operands.
// On Arm (not measured) fp32 too is for BLAS: OpenBLAS and ArmPL have kernels for NEON and SVE, while oneDNN has loops,
// unless it is built with Arm's Compute Library. bf16: own tiles with BFMMLA, else widened operands.

#include <cblas.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/gemm/gemm_dnnl.hpp"
#include "kernels/gemm/gemm_tiles.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/kernels/gemm/gemm_algorithms.hpp"
#include "nanotron/kernels/gemm/own_tiles.hpp"

namespace nanotron::kernels {

namespace detail {
namespace {

using Type = dnnl::memory::data_type;

// Bytes reserved for the scratchpad of oneDNN's matmul; a larger one is allocated (own_scratch).
constexpr std::size_t scratch_allowance = std::size_t{4} << 20;
constexpr std::size_t alignment = 256;

std::size_t aligned(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

std::size_t packed_bytes(index_t k, index_t n, std::size_t element) {
  const index_t rows = (k + 63) / 64 * 64;
  const index_t columns = (n + 63) / 64 * 64;
  return aligned(static_cast<std::size_t>(rows * columns) * element);
}

#ifdef __aarch64__
constexpr bool floats_by_blas = true;
#else
constexpr bool floats_by_blas = false;
#endif

// Of oneDNN.
bool has_bf16_instructions() {
  static const bool has = [] {
    if (floats_by_blas) return false;
    const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
    const auto needed = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
    return (isa & needed) == needed;
  }();
  return has;
}

// Hands out buffers of the GEMM workspace; null when too little is left.
class Pieces {
 public:
  explicit Pieces(const Device& device)
      : next_(device.gemm_workspace().data()), left_(device.gemm_workspace().extent(0)) {}
  std::byte* take(std::size_t bytes) {
    const std::size_t size = aligned(bytes);
    if (size > left_ || bytes == 0) return nullptr;
    left_ -= size;
    return std::exchange(next_, next_ + size);
  }

 private:
  std::byte* next_;
  std::size_t left_;
};

void run_matmul(Device& device, Pieces pieces, const GemmProblem& p, Type operands, Type result, bool pack,
                const void* a, const void* b, void* c) {
  GemmHandles& all = handles(device);
  GemmHandles::Matmul* matmul = &all.find(p, operands, result, pack);
  std::byte* packed = pack ? pieces.take(matmul->packed_b_bytes) : nullptr;
  if (pack && packed == nullptr) matmul = &all.find(p, operands, result, false);
  all.run(*matmul, a, b, c, packed, pieces.take(matmul->scratch_bytes));
}

// With fewer rows, packing B costs more than it saves.
constexpr index_t min_rows_to_pack = 64;

template <class C>
void widen_and_multiply(Device& device, const GemmProblem& p, const bf16* a, const bf16* b, C* c);

CBLAS_TRANSPOSE blas_word(Op op) { return op == Op::none ? CblasNoTrans : CblasTrans; }

// free: what is left of the GEMM workspace.
void multiply_floats(Device& device, const Pieces& free, const GemmProblem& p, const float* a, const float* b,
                     float* c) {
  if (floats_by_blas) {
    return cblas_sgemm(CblasRowMajor, blas_word(p.op_a), blas_word(p.op_b), static_cast<int>(p.m),
                       static_cast<int>(p.n), static_cast<int>(p.k), static_cast<float>(p.alpha), a,
                       static_cast<int>(p.leading_a), b, static_cast<int>(p.leading_b), static_cast<float>(p.beta), c,
                       static_cast<int>(p.leading_c));
  }
  if (p.op_a == Op::transpose && p.op_b == Op::none) {
    return run_matmul(device, free, p, Type::f32, Type::f32, false, a, b, c);
  }
  const auto letter = [](Op op) { return op == Op::none ? 'N' : 'T'; };
  const dnnl_status_t status = dnnl_sgemm(letter(p.op_a), letter(p.op_b), p.m, p.n, p.k, static_cast<float>(p.alpha), a,
                                          p.leading_a, b, p.leading_b, static_cast<float>(p.beta), c, p.leading_c);
  NANOTRON_REQUIRE(status == dnnl_success, "oneDNN's sgemm failed: status {}", static_cast<int>(status));
}

}  // namespace

template <>
void multiply<double, double>(Device& device, const GemmProblem& p, const double* a, const double* b, double* c) {
  device.fence();
  cblas_dgemm(CblasRowMajor, blas_word(p.op_a), blas_word(p.op_b), static_cast<int>(p.m), static_cast<int>(p.n),
              static_cast<int>(p.k), p.alpha, a, static_cast<int>(p.leading_a), b, static_cast<int>(p.leading_b),
              p.beta, c, static_cast<int>(p.leading_c));
}

template <>
void multiply<float, float>(Device& device, const GemmProblem& p, const float* a, const float* b, float* c) {
  device.fence();
  multiply_floats(device, Pieces(device), p, a, b, c);
}

namespace {

template <class C>
void multiply_bf16(Device& device, const GemmProblem& p, Type result, const bf16* a, const bf16* b, C* c) {
  device.fence();
  if (bf16_tiles::wants(p)) {
    Pieces pieces(device);
    std::byte* const workspace = pieces.take(bf16_tiles::workspace_bytes(p.n, p.k));
    if (workspace != nullptr) return bf16_tiles::multiply<C>(device, p, a, b, c, workspace);
  }
  if (!has_bf16_instructions()) return widen_and_multiply(device, p, a, b, c);
  run_matmul(device, Pieces(device), p, Type::bf16, result, p.m >= min_rows_to_pack, a, b, c);
}

}  // namespace

template <>
void multiply<bf16, bf16>(Device& device, const GemmProblem& p, const bf16* a, const bf16* b, bf16* c) {
  multiply_bf16(device, p, Type::bf16, a, b, c);
}

template <>
void multiply<bf16, float>(Device& device, const GemmProblem& p, const bf16* a, const bf16* b, float* c) {
  multiply_bf16(device, p, Type::f32, a, b, c);
}

namespace {

// to (rows, columns) = from in fp32, without padding.
void widen(const bf16* from, index_t rows, index_t columns, index_t leading, float* to) {
  for (index_t r = 0; r < rows; ++r) {
    for (index_t c = 0; c < columns; ++c) to[r * columns + c] = from[r * leading + c];
  }
}

template <class C>
void widen_and_multiply(Device& device, const GemmProblem& p, const bf16* a, const bf16* b, C* c) {
  const index_t rows_a = p.op_a == Op::none ? p.m : p.k, columns_a = p.op_a == Op::none ? p.k : p.m;
  const index_t rows_b = p.op_b == Op::none ? p.k : p.n, columns_b = p.op_b == Op::none ? p.n : p.k;
  Pieces pieces(device);
  const auto floats = [&](index_t n) {
    return reinterpret_cast<float*>(pieces.take(static_cast<std::size_t>(n) * sizeof(float)));
  };
  float* wide_a = floats(p.m * p.k);
  float* wide_b = floats(p.k * p.n);
  float* wide_c = floats(p.m * p.n);
  std::vector<float> own;
  if (wide_a == nullptr || wide_b == nullptr || wide_c == nullptr) {
    own.resize(static_cast<std::size_t>(p.m * p.k + p.k * p.n + p.m * p.n));
    wide_a = own.data();
    wide_b = wide_a + p.m * p.k;
    wide_c = wide_b + p.k * p.n;
  }
  widen(a, rows_a, columns_a, p.leading_a, wide_a);
  widen(b, rows_b, columns_b, p.leading_b, wide_b);
  GemmProblem wide = p;
  wide.leading_a = columns_a;
  wide.leading_b = columns_b;
  wide.leading_c = p.n;
  wide.beta = 0;
  multiply_floats(device, pieces, wide, wide_a, wide_b, wide_c);
  const float beta = static_cast<float>(p.beta);
  for (index_t r = 0; r < p.m; ++r) {
    for (index_t j = 0; j < p.n; ++j) {
      C& target = c[r * p.leading_c + j];
      const float before = beta == 0.0f ? 0.0f : beta * static_cast<float>(target);
      target = static_cast<C>(wide_c[r * p.n + j] + before);
    }
  }
}

}  // namespace

template <class T, class C>
void multiply_batch(Device& device, const GemmProblem& p, std::size_t, const T* const* a, const T* const* b,
                    C* const* c, index_t count) {
  for (index_t i = 0; i < count; ++i) multiply<T, C>(device, p, a[i], b[i], c[i]);
}
#define NANOTRON_INSTANTIATE(T, C)                                                                               \
  template void multiply_batch<T, C>(Device&, const GemmProblem&, std::size_t, const T* const*, const T* const*, \
                                     C* const*, index_t);
NANOTRON_FOR_GEMM_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

PeakShape peak_shape() { return {.smallest = 1024, .largest = 1024, .per_fence = 1}; }

template <class T>
std::size_t library_workspace_bytes(index_t m, index_t n, index_t k) {
  if constexpr (std::is_same_v<T, double>) return 0;
  if constexpr (std::is_same_v<T, float>) return detail::scratch_allowance;
  const auto floats = [](index_t count) { return detail::aligned(static_cast<std::size_t>(count) * sizeof(float)); };
  const std::size_t of_library = detail::has_bf16_instructions() ? detail::packed_bytes(k, n, sizeof(bf16))
                                                                 : floats(m * k) + floats(k * n) + floats(m * n);
  return std::max(of_library + detail::scratch_allowance, detail::aligned(bf16_tiles::workspace_bytes(n, k)));
}
#define NANOTRON_INSTANTIATE(T) template std::size_t library_workspace_bytes<T>(index_t, index_t, index_t);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace detail

template <class T>
bool runs_on_tiles(const Device& device, index_t m) {
  return std::is_same_v<T, bf16> && device.processor() == Processor::cpu && device.gemm_mode() == GemmMode::library &&
         bf16_tiles::wants({.m = m, .n = 1, .k = 1});
}
template <class T>
const char* gemm_library() {
  if constexpr (std::is_same_v<T, double>) return "BLAS";
  if constexpr (std::is_same_v<T, float>) return detail::floats_by_blas ? "BLAS" : "oneDNN";
  if (bf16_tiles::wants({.m = 1024, .n = 1024, .k = 1024})) return bf16_tiles::instructions();
  if (detail::floats_by_blas) return "BLAS, widened to fp32";
  return detail::has_bf16_instructions() ? "oneDNN, bf16 instructions" : "oneDNN, widened to fp32";
}
#define NANOTRON_INSTANTIATE(T)                           \
  template bool runs_on_tiles<T>(const Device&, index_t); \
  template const char* gemm_library<T>();
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

void use_gemm_algorithms(Device&, const GemmAlgorithms&, const std::string&) {}

void leave_multiprocessors(Device&, int) {}

void measure_gemm_algorithms(Device&) {
  fail(ExitCode::deck_error, {.what = "there are no GEMM algorithms to measure",
                              .expected = "a build for GPUs",
                              .found = "a build for CPUs: its libraries choose by themselves"});
}

GemmAlgorithms measured_gemm_algorithms(const Device&) { return {}; }

GemmAlgorithmCounts gemm_algorithm_counts(const Device&) { return {}; }

}  // namespace nanotron::kernels
