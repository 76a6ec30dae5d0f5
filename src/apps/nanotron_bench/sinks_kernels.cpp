// What the benchmark measures of attention sinks.

#include "kernel_rows.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/nn/attention/sinks.hpp"

namespace nanotron::apps::bench {

template <class T>
void add_denominator_kernels(KernelRows<T>& table) {
  using M = master_t<T>;
  if (!table.bench().config.model.attention_sinks) return;
  const kernels::AttentionShape shape = attention_shape(table.bench());
  const index_t tokens = shape.batch * shape.query_length, heads = shape.query_heads, width = heads * shape.head_dim;
  const Buffer<T> out(tokens * width), dout(tokens * width);
  const Buffer<M> lse(tokens * heads), logits(heads), gradient(heads);
  const auto term =
      nn::make_sinks<T>(shape.first_query_head, Vector<const M>(logits.vector(heads)), gradient.vector(heads));
  const Kokkos::View<std::byte*, MemorySpace> workspace("sinks", term->workspace_bytes(shape, built_for));
  table.by_plan(table.in_layers(), [&](Device& device) {
    term->forward(device, shape, out.matrix(tokens, width), lse.vector(tokens * heads));
  });
  table.by_plan(table.in_layers(), [&](Device& device) {
    term->backward(device, shape, out.matrix(tokens, width), dout.matrix(tokens, width),
                   Vector<const M>(lse.vector(tokens * heads)), Vector<std::byte>(workspace.data(), workspace.size()));
  });
}

#define NANOTRON_INSTANTIATE(T) template void add_denominator_kernels<T>(KernelRows<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::apps::bench
