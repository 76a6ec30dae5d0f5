#include <cuda_runtime_api.h>

#include "kernels/attention/attention_backend.hpp"
#include "kernels/attention/cuda/attention_cudnn.hpp"
#include "nanotron/base/error.hpp"

namespace nanotron::kernels::detail {
namespace {

bool can_be_mma(const Device& device, const AttentionShape& shape, const AttentionGradients<bf16>& t) {
  return fused::by_mma(device, shape, {t.q, t.k, t.v, t.out, t.dout, t.dq, t.dk, t.dv});
}

}  // namespace

template <class T>
void run_forward(Device& device, fused::Library library, const AttentionShape& shape, MatrixRef<const T> q,
                 MatrixRef<const T> k, MatrixRef<const T> v, MatrixRef<T> out, Vector<master_t<T>> lse,
                 Vector<std::byte> workspace) {
  if constexpr (std::is_same_v<T, bf16>) {
    const bool runs_cudnn = library == fused::Library::cudnn;
    if (runs_cudnn && cudnn::attention_forward(device, shape, q, k, v, out, lse, workspace)) return;
    if (library == fused::Library::mma || (runs_cudnn && fused::by_mma(device, shape, {q, k, v, out}))) {
      return mma::attention_forward(device, shape, q, k, v, out, lse);
    }
  }
  blocked::attention_forward<T>(device, shape, q, k, v, out, lse, workspace);
}

template <class T>
void run_backward(Device& device, fused::Library library, const AttentionShape& shape, const AttentionGradients<T>& t,
                  Vector<std::byte> workspace) {
  if constexpr (std::is_same_v<T, bf16>) {
    const bool runs_cudnn = library == fused::Library::cudnn;
    if (runs_cudnn && cudnn::attention_backward(device, shape, t, workspace)) return;
    if (library == fused::Library::mma || (runs_cudnn && can_be_mma(device, shape, t))) {
      return mma::attention_backward(device, shape, t, workspace);
    }
  }
  blocked::attention_backward<T>(device, shape, t, workspace);
}

template <class T>
std::size_t workspace_bytes(const AttentionShape& shape) {
  return blocked::attention_workspace_bytes<T>(shape);
}

fused::Available available(Device& device) {
  static const bool has_tensor_cores = [] {
    int current = 0;
    cudaDeviceProp properties{};
    NANOTRON_CHECK_GPU(cudaGetDevice(&current));
    NANOTRON_CHECK_GPU(cudaGetDeviceProperties(&properties, current));
    return properties.major >= 8;
  }();
  return {.cudnn = cudnn::is_there(device), .tensor_cores = has_tensor_cores};
}

template <class T>
std::string library(Device& device, const AttentionShape& shape) {
  switch (fused::library_of<T>(device, shape, {}, available(device))) {
    case fused::Library::cudnn:
      if (!fused::has_backward(shape)) return cudnn::version() + ", backward by own kernels, deterministic";
      return cudnn::version() + (shape.backward == BackwardAlgorithm::deterministic ? ", deterministic" : "");
    case fused::Library::mma:
      return "own kernels on tensor cores: " + (!cudnn::is_there(device)  ? cudnn::why_missing(device)
                                                : shape.scores.is_scale() ? "this mask is not given to cuDNN"
                                                                          : "these scores are not given to cuDNN");
    default:
      return "batched GEMMs";
  }
}

NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE_ATTENTION)

}  // namespace nanotron::kernels::detail
