#include "kernels/attention/attention_backend.hpp"
#include "kernels/attention/attention_fused.hpp"
#include "kernels/attention/cuda/attention_cudnn.hpp"

namespace nanotron::kernels::detail {

template <class T>
void run_forward(Device& device, const AttentionShape& shape, MatrixRef<const T> q,
                 MatrixRef<const T> k, MatrixRef<const T> v, MatrixRef<T> out,
                 Vector<master_t<T>> lse, Vector<std::byte> workspace) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (cudnn::attention_forward(device, shape, q, k, v, out, lse, workspace)) return;
    if (fused::by_mma(device, shape, {q, k, v, out})) return mma::attention_forward(device, shape, q, k, v, out, lse);
  }
  blocked::attention_forward<T>(device, shape, q, k, v, out, lse, workspace);
}

template <class T>
void run_backward(Device& device, const AttentionShape& shape, const AttentionGradients<T>& t,
                  Vector<std::byte> workspace) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (cudnn::attention_backward(device, shape, t, workspace)) return;
    if (fused::by_mma(device, shape, {t.q, t.k, t.v, t.out, t.dout, t.dq, t.dk, t.dv})) {
      return mma::attention_backward(device, shape, t, workspace);
    }
  }
  blocked::attention_backward<T>(device, shape, t, workspace);
}

template <class T>
std::size_t workspace_bytes(const AttentionShape& shape) {
  return blocked::attention_workspace_bytes<T>(shape);
}

template <class T>
std::string library(Device& device) {
  if (!std::is_same_v<T, bf16> || device.gemm_mode() != GemmMode::library) return "batched GEMMs";
  return cudnn::library(device);
}

NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE_ATTENTION)

}  // namespace nanotron::kernels::detail
