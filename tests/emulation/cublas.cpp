// The functions of cuBLAS and cuBLASLt that the program calls, as queued work of an emulated GPU. Column-major, like
// theirs; operands are checked against the alignment that the algorithm was asked for.
#include <cublasLt.h>
#include <cublas_v2.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "emulation/device_memory.hpp"
#include "emulation/fp8_scales.hpp"
#include "emulation/gemms.hpp"
#include "emulation/scheduler.hpp"
#include "nanotron/base/fp8.hpp"

using namespace nanotron::emulation;

namespace {

struct Operation {
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  std::int32_t multiprocessors = 0;  // 0: all
  cudaDataType_t scale = CUDA_R_32F;
  const float *scale_a = nullptr, *scale_b = nullptr;  // of FP8 operands
  std::int32_t mode_a = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, mode_b = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  std::int8_t fast_accumulation = 0;
};
struct Layout {
  cudaDataType_t type = CUDA_R_32F;
  std::uint64_t rows = 0, columns = 0;
  std::int64_t leading = 0;
};
struct Preference {
  std::size_t workspace = 0;
  std::array<std::uint32_t, 4> alignment{256, 256, 256, 256};  // A, B, C, D: cuBLASLt's defaults
  std::uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_MASK;    // how parts of a sum may be added
  std::uint32_t candidate = 0;                                 // of those that the heuristic found
};
struct Handle {
  cudaStream_t stream = nullptr;
};

template <class T, class H>
T& as(H handle) {
  return *reinterpret_cast<T*>(handle);
}

bool is_fp8(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
std::size_t size_of(cudaDataType_t type) {
  return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : is_fp8(type) ? 1 : 2;
}

double load(cudaDataType_t type, const void* data, std::size_t i) {
  switch (type) {
    case CUDA_R_64F:
      return static_cast<const double*>(data)[i];
    case CUDA_R_32F:
      return static_cast<const float*>(data)[i];
    case CUDA_R_8F_E4M3:
      return static_cast<float>(static_cast<const nanotron::e4m3*>(data)[i]);
    case CUDA_R_8F_E5M2:
      return static_cast<float>(static_cast<const nanotron::e5m2*>(data)[i]);
    default:
      return static_cast<float>(static_cast<const nanotron::bf16*>(data)[i]);
  }
}
void store(cudaDataType_t type, void* data, std::size_t i, double value) {
  switch (type) {
    case CUDA_R_64F:
      static_cast<double*>(data)[i] = value;
      break;
    case CUDA_R_32F:
      static_cast<float*>(data)[i] = static_cast<float>(value);
      break;
    default:
      static_cast<nanotron::bf16*>(data)[i] = nanotron::bf16(static_cast<float>(value));
  }
}

double rounded(cudaDataType_t type, double value) {
  double held = 0;
  store(type, &held, 0, value);
  return load(type, &held, 0);
}

// D (m, n) <- alpha op(A) op(B) + beta C, sums in fp64; in `parts` parts over k, each rounded to D's type, where the
// library may do so. C and D have the same layout.
struct Gemm {
  cublasOperation_t op_a, op_b;
  std::int64_t m, n, k, leading_a, leading_b, leading_c;
  cudaDataType_t type, type_b, result;
  double alpha, beta;
  std::int64_t parts = 1;
  Scales scale_a{}, scale_b{};

  void operator()(const void* a, const void* b, const void* c, void* d) const {
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t i = 0; i < m; ++i) {
        double sum = 0;
        for (std::int64_t part = 0; part < parts; ++part) {
          double terms = 0;
          for (std::int64_t l = part * k / parts; l < (part + 1) * k / parts; ++l) {
            const auto at_a = static_cast<std::size_t>(op_a == CUBLAS_OP_N ? i + l * leading_a : l + i * leading_a);
            const auto at_b = static_cast<std::size_t>(op_b == CUBLAS_OP_N ? l + j * leading_b : j + l * leading_b);
            terms += load(type, a, at_a) * load(type_b, b, at_b) * scale_a(i, l, m, k) * scale_b(j, l, n, k);
          }
          sum += parts > 1 ? rounded(result, terms) : terms;
        }
        const auto at = static_cast<std::size_t>(i + j * leading_c);
        store(result, d, at, alpha * sum + (beta == 0 ? 0 : beta * load(result, c, at)));
      }
    }
  }
  static std::size_t bytes(std::int64_t rows, std::int64_t columns, std::int64_t leading, cudaDataType_t type) {
    return static_cast<std::size_t>((columns - 1) * leading + rows) * size_of(type);
  }
  // Which kernel runs it is the library's choice: one for each shape, so that none counts as loaded that may not be.
  std::string name() const {
    return fmt::format("a GEMM of {} x {} x {}, operations {} {}, types {} {} {}", m, n, k, static_cast<int>(op_a),
                       static_cast<int>(op_b), static_cast<int>(type), static_cast<int>(type_b),
                       static_cast<int>(result));
  }
  void require_operands(const void* a, const void* b, const void* c, const void* d) const {
    require_device(a, bytes(op_a == CUBLAS_OP_N ? m : k, op_a == CUBLAS_OP_N ? k : m, leading_a, type), "A of a GEMM");
    require_device(b, bytes(op_b == CUBLAS_OP_N ? k : n, op_b == CUBLAS_OP_N ? n : k, leading_b, type_b),
                   "B of a GEMM");
    scale_a.require(m, k);
    scale_b.require(n, k);
    require_device(c, bytes(m, n, leading_c, result), "C of a GEMM");
    require_device(d, bytes(m, n, leading_c, result), "D of a GEMM");
  }
};

double scalar(cudaDataType_t type, const void* value) { return load(type, value, 0); }

void require_alignment(const char* name, const void* data, std::uint32_t alignment) {
  if (reinterpret_cast<std::uintptr_t>(data) % alignment != 0) {
    fault(fmt::format("cublasLtMatmul: {} is not aligned to the {} bytes that its algorithm was chosen for", name,
                      alignment));
  }
}

// cuBLASLt 13.1 on a GPU: "The workspace pointer must be aligned to at least a multiple of 256 bytes" (its log; the
// manual says 16), and CUBLAS_STATUS_INVALID_VALUE.
void require_workspace(const void* workspace) { require_alignment("the workspace", workspace, 256); }

// Of an FP8 GEMM on Hopper, by the manual of cublasLtMatmul.
void require_fp8(const Gemm& gemm, std::initializer_list<const void*> operands) {
  const auto demand = [&](bool holds, const char* rule) {
    if (!holds) fault(fmt::format("cublasLtMatmul in FP8, {} x {} x {}: {}", gemm.m, gemm.n, gemm.k, rule));
  };
  const auto bytes = static_cast<std::int64_t>(size_of(gemm.result));
  demand(is_fp8(gemm.type) && is_fp8(gemm.type_b), "only one operand is FP8");
  demand(gemm.type == CUDA_R_8F_E4M3 || gemm.type_b == CUDA_R_8F_E4M3, "both operands are e5m2");
  demand(gemm.result == CUDA_R_16BF || gemm.result == CUDA_R_32F, "C is neither bf16 nor fp32");
  demand(gemm.op_a == CUBLAS_OP_T && gemm.op_b == CUBLAS_OP_N, "A must be transposed and B not (TN)");
  demand(gemm.m % 16 == 0 && gemm.k % 16 == 0, "m and k must be multiples of 16");
  demand(gemm.leading_a % 16 == 0 && gemm.leading_b % 16 == 0 && gemm.leading_c * bytes % 16 == 0,
         "leading dimensions must be multiples of 16 bytes");
  for (const void* operand : operands) {
    demand(reinterpret_cast<std::uintptr_t>(operand) % 16 == 0, "operands must be aligned to 16 bytes");
  }
}

// Of a batched GEMM on tensor cores, by the manual of cublasGemmBatchedEx.
void require_batch_alignment(const Gemm& gemm, std::initializer_list<const void*> operands) {
  if (gemm.type != CUDA_R_16BF) return;
  const std::uintptr_t alignment = gemm.k % 8 == 0 ? 16 : gemm.k % 2 == 0 ? 4 : 2;
  for (const void* operand : operands) {
    if (reinterpret_cast<std::uintptr_t>(operand) % alignment != 0) {
      fault(fmt::format("cublasGemmBatchedEx: an operand is not aligned to the {} bytes that k = {} demands", alignment,
                        gemm.k));
    }
  }
}

Stream& queue_of(cudaStream_t stream) {
  return stream == nullptr ? Scheduler::instance().default_stream() : *reinterpret_cast<Stream*>(stream);
}

}  // namespace

extern "C" {

const char* cublasGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "success" : "failed";
}
const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasGetStatusString(status); }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new Handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete &as<Handle>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t, cudaDataType_t scale) {
  *made = reinterpret_cast<cublasLtMatmulDesc_t>(new Operation{.scale = scale});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete &as<Operation>(operation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t) {
  auto& op = as<Operation>(operation);
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSA) std::memcpy(&op.a, value, sizeof op.a);
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSB) std::memcpy(&op.b, value, sizeof op.b);
  if (attribute == CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET) {
    std::memcpy(&op.multiprocessors, value, sizeof op.multiprocessors);
    if (op.multiprocessors < 0 || op.multiprocessors > multiprocessors)
      fault("cublasLtMatmul on more multiprocessors than there are");
  }
  if (attribute == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER) std::memcpy(&op.scale_a, value, sizeof op.scale_a);
  if (attribute == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER) std::memcpy(&op.scale_b, value, sizeof op.scale_b);
  if (attribute == CUBLASLT_MATMUL_DESC_A_SCALE_MODE) std::memcpy(&op.mode_a, value, sizeof op.mode_a);
  if (attribute == CUBLASLT_MATMUL_DESC_B_SCALE_MODE) std::memcpy(&op.mode_b, value, sizeof op.mode_b);
  if (attribute == CUBLASLT_MATMUL_DESC_FAST_ACCUM) op.fast_accumulation = *static_cast<const std::int8_t*>(value);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
  *made = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, leading});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete &as<Layout>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete &as<Preference>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  auto& p = as<Preference>(preference);
  void* target = nullptr;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      target = &p.workspace;
      break;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      target = &p.reduction;
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      target = &p.alignment[0];
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      target = &p.alignment[1];
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      target = &p.alignment[2];
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      target = &p.alignment[3];
      break;
    default:
      return CUBLAS_STATUS_SUCCESS;
  }
  std::memcpy(target, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* found, int* count) {
  static_assert(sizeof(Preference) <= sizeof found->algo);
  *count = std::min(wanted, 3);
  for (int i = 0; i < *count; ++i) {
    Preference algorithm = as<Preference>(preference);
    algorithm.candidate = static_cast<std::uint32_t>(i);
    found[i] = {};
    std::memcpy(&found[i].algo, &algorithm, sizeof algorithm);
    if (i == 1) found[i].state = CUBLAS_STATUS_NOT_SUPPORTED;  // a result that is none
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulHeuristicResult_t* result) {
  *result = {};
  Preference chosen;
  std::memcpy(&chosen, algorithm, sizeof chosen);
  if (chosen.alignment[0] == 0) return CUBLAS_STATUS_INVALID_VALUE;  // no algorithm of this library
  std::memcpy(&result->algo, algorithm, sizeof *algorithm);
  result->workspaceSize = chosen.workspace;
  return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t layout_a, const void* b, cublasLtMatrixLayout_t layout_b,
                              const void* beta, const void* c, cublasLtMatrixLayout_t layout_c, void* d,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  const auto& op = as<Operation>(operation);
  const auto &of_a = as<Layout>(layout_a), &of_b = as<Layout>(layout_b), &of_c = as<Layout>(layout_c);
  if (layout_c != layout_d) fault("cublasLtMatmul with a layout of C other than D's");
  Preference chosen_for;
  std::memcpy(&chosen_for, algorithm, sizeof chosen_for);
  if (chosen_for.candidate == 1) fault("cublasLtMatmul with an algorithm that the heuristic did not find usable");
  require_alignment("A", a, chosen_for.alignment[0]);
  require_alignment("B", b, chosen_for.alignment[1]);
  require_alignment("C", c, chosen_for.alignment[2]);
  require_alignment("D", d, chosen_for.alignment[3]);
  require_workspace(workspace);
  if (chosen_for.workspace > workspace_bytes) fault("cublasLtMatmul: less workspace than its algorithm was chosen for");
  require_device(workspace, workspace_bytes, "a GEMM's workspace");
  Gemm gemm{.op_a = op.a,
            .op_b = op.b,
            .m = static_cast<std::int64_t>(of_c.rows),
            .n = static_cast<std::int64_t>(of_c.columns),
            .k = static_cast<std::int64_t>(op.a == CUBLAS_OP_N ? of_a.columns : of_a.rows),
            .leading_a = of_a.leading,
            .leading_b = of_b.leading,
            .leading_c = of_c.leading,
            .type = of_a.type,
            .type_b = of_b.type,
            .result = of_c.type,
            .alpha = scalar(op.scale, alpha),
            .beta = scalar(op.scale, beta),
            .scale_a = {op.scale_a, op.mode_a},
            .scale_b = {op.scale_b, op.mode_b}};
  if (is_fp8(of_a.type) || is_fp8(of_b.type)) require_fp8(gemm, {a, b, c, d});
  require_scale_modes(gemm.scale_a, gemm.scale_b, gemm.n, op.fast_accumulation != 0);
  if ((chosen_for.reduction & (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)) != 0) {
    gemm.parts = 4;
  }
  gemm.require_operands(a, b, c, d);
  const auto is_odd = [](std::int64_t leading, cudaDataType_t type) {
    return static_cast<std::size_t>(leading) * size_of(type) % 16 != 0;
  };
  if (gemm.type == CUDA_R_16BF &&
      (is_odd(gemm.leading_a, gemm.type) || is_odd(gemm.leading_b, gemm.type_b) || is_odd(gemm.leading_c, gemm.result)))
    ++gemms_of_odd_rows;
  multiprocessors_of_last_gemm = op.multiprocessors > 0 ? op.multiprocessors : multiprocessors;
  Scheduler::instance().load_module(gemm.name());
  Scheduler::instance().launch_kernel(queue_of(stream), "cublasLtMatmul", [=] { gemm(a, b, c, d); });
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = reinterpret_cast<cublasHandle_t>(new Handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete &as<Handle>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  as<Handle>(handle).stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void* workspace, size_t bytes) {
  require_workspace(workspace);
  require_device(workspace, bytes, "cublasSetWorkspace");
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGemmBatchedEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n,
                                   int k, const void* alpha, const void* const a[], cudaDataType_t type, int leading_a,
                                   const void* const b[], cudaDataType_t, int leading_b, const void* beta,
                                   void* const c[], cudaDataType_t result, int leading_c, int count,
                                   cublasComputeType_t compute, cublasGemmAlgo_t) {
  const auto bytes = static_cast<std::size_t>(count) * sizeof(void*);
  require_device(a, bytes, "the pointers to A of a batched GEMM");
  require_device(b, bytes, "the pointers to B of a batched GEMM");
  require_device(c, bytes, "the pointers to C of a batched GEMM");
  const cudaDataType_t scale = compute == CUBLAS_COMPUTE_64F ? CUDA_R_64F : CUDA_R_32F;
  const Gemm gemm{.op_a = op_a,
                  .op_b = op_b,
                  .m = m,
                  .n = n,
                  .k = k,
                  .leading_a = leading_a,
                  .leading_b = leading_b,
                  .leading_c = leading_c,
                  .type = type,
                  .type_b = type,
                  .result = result,
                  .alpha = scalar(scale, alpha),
                  .beta = scalar(scale, beta)};
  Scheduler::instance().load_module("batches of " + gemm.name());
  Scheduler::instance().launch_kernel(queue_of(as<Handle>(handle).stream), "cublasGemmBatchedEx", [=] {
    for (int i = 0; i < count; ++i) {
      gemm.require_operands(a[i], b[i], c[i], c[i]);
      require_batch_alignment(gemm, {a[i], b[i], c[i]});
      gemm(a[i], b[i], c[i], c[i]);
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
