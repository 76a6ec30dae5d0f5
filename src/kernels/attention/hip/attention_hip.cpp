#include "kernels/attention/attention_backend.hpp"

// Batched GEMMs on blocks of scores (attention_blocked.cpp): there is no cuDNN, and the fused kernels of mma/ are for
// the tensor cores of NVIDIA's GPUs.

namespace nanotron::kernels::detail {

template <class T>
void run_forward(Device& device, fused::Library, const AttentionShape& shape, MatrixRef<const T> q,
                 MatrixRef<const T> k, MatrixRef<const T> v, MatrixRef<T> out, Vector<master_t<T>> lse,
                 Vector<std::byte> workspace) {
  blocked::attention_forward<T>(device, shape, q, k, v, out, lse, workspace);
}

template <class T>
void run_backward(Device& device, fused::Library, const AttentionShape& shape, const AttentionGradients<T>& t,
                  Vector<std::byte> workspace) {
  blocked::attention_backward<T>(device, shape, t, workspace);
}

template <class T>
std::size_t workspace_bytes(const AttentionShape& shape) {
  return blocked::attention_workspace_bytes<T>(shape);
}

fused::Available available(Device&) { return {.cudnn = false, .tensor_cores = false}; }

template <class T>
std::string library(Device&, const AttentionShape&) {
  return "batched GEMMs";
}

NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE_ATTENTION)

}  // namespace nanotron::kernels::detail
