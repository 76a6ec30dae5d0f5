#include "nanotron/kernels/attention/attention.hpp"

#include "kernels/attention/attention_backend.hpp"
#include "nanotron/base/error.hpp"

namespace nanotron::kernels {
namespace {

void check(const AttentionShape& s, std::size_t workspace, std::size_t needed) {
  NANOTRON_REQUIRE(
      s.head_dim >= 1 && s.head_dim <= 256 && s.group >= 1 && s.query_position >= 0 && s.key_position >= 0,
      "attention: head_dim {}, group {}, queries from {}, keys from {}", s.head_dim, s.group,
      s.query_position, s.key_position);
  const bool heads_match = s.query_heads == 0 || (s.key_head_of(0) >= 0 &&
                                                  s.key_head_of(s.query_heads - 1) < s.key_heads);
  NANOTRON_REQUIRE(heads_match,
                   "attention: query heads {} + {} of groups of {} have no key head here",
                   s.first_query_head, s.query_heads, s.group);
  NANOTRON_REQUIRE(workspace >= needed, "attention: workspace of {} bytes, needs {}", workspace,
                   needed);
}

}  // namespace

template <class T>
void attention_forward(Device& device, const AttentionShape& shape, MatrixRef<const T> q,
                       MatrixRef<const T> k, MatrixRef<const T> v, MatrixRef<T> out,
                       Vector<master_t<T>> lse, Vector<std::byte> workspace) {
  const Region region(device.timers(), "attention_forward");
  check(shape, workspace.extent(0), attention_workspace_bytes<T>(shape));
  detail::run_forward<T>(device, shape, q, k, v, out, lse, workspace);
}

template <class T>
void attention_backward(Device& device, const AttentionShape& shape, MatrixRef<const T> q,
                        MatrixRef<const T> k, MatrixRef<const T> v, MatrixRef<const T> out,
                        MatrixRef<const T> dout, Vector<const master_t<T>> lse, MatrixRef<T> dq,
                        MatrixRef<T> dk, MatrixRef<T> dv, Vector<std::byte> workspace) {
  const Region region(device.timers(), "attention_backward");
  check(shape, workspace.extent(0), attention_workspace_bytes<T>(shape));
  detail::run_backward<T>(device, shape, {q, k, v, out, dout, lse, dq, dk, dv}, workspace);
}

template <class T>
std::size_t attention_workspace_bytes(const AttentionShape& shape) {
  return detail::workspace_bytes<T>(shape);
}

#define NANOTRON_INSTANTIATE(T)                                                                    \
  template void attention_forward<T>(Device&, const AttentionShape&, MatrixRef<const T>,           \
                                     MatrixRef<const T>, MatrixRef<const T>, MatrixRef<T>,         \
                                     Vector<master_t<T>>, Vector<std::byte>);                      \
  template void attention_backward<T>(Device&, const AttentionShape&, MatrixRef<const T>,          \
                                      MatrixRef<const T>, MatrixRef<const T>, MatrixRef<const T>,  \
                                      MatrixRef<const T>, Vector<const master_t<T>>, MatrixRef<T>, \
                                      MatrixRef<T>, MatrixRef<T>, Vector<std::byte>);              \
  template std::size_t attention_workspace_bytes<T>(const AttentionShape&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
