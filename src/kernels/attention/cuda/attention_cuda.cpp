#include "kernels/attention/attention_backend.hpp"
#include "nanotron/kernels/attention/attention_blocked.hpp"

namespace nanotron::kernels::detail {

template <class T>
void run_forward(Device& device, const AttentionShape& shape, MatrixRef<const T> q,
                 MatrixRef<const T> k, MatrixRef<const T> v, MatrixRef<T> out,
                 Vector<master_t<T>> lse, Vector<std::byte> workspace) {
  blocked::attention_forward<T>(device, shape, q, k, v, out, lse, workspace);
}

template <class T>
void run_backward(Device& device, const AttentionShape& shape, const AttentionGradients<T>& t,
                  Vector<std::byte> workspace) {
  blocked::attention_backward<T>(device, shape, t, workspace);
}

template <class T>
std::size_t workspace_bytes(const AttentionShape& shape) {
  return blocked::attention_workspace_bytes<T>(shape);
}

#define NANOTRON_INSTANTIATE(T)                                                               \
  template void run_forward<T>(Device&, const AttentionShape&, MatrixRef<const T>,            \
                               MatrixRef<const T>, MatrixRef<const T>, MatrixRef<T>,          \
                               Vector<master_t<T>>, Vector<std::byte>);                       \
  template void run_backward<T>(Device&, const AttentionShape&, const AttentionGradients<T>&, \
                                Vector<std::byte>);                                           \
  template std::size_t workspace_bytes<T>(const AttentionShape&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels::detail
