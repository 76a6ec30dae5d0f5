// What the benchmark measures of multi-head latent attention, between the projections and attention.

#include "kernel_rows.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/kernels/attention/latent.hpp"
#include "nanotron/nn/attention/rotation.hpp"

namespace nanotron::apps::bench {

template <class T>
bool add_compressed_kernels(KernelRows<T>& table) {
  const deck::ModelConfig& model = table.bench().config.model;
  if (model.kv_lora_rank == 0) return false;
  Device& device = table.device();
  const index_t n = table.bench().sizes().tokens, length = table.bench().config.data.sequence_length;
  Arena planning = Arena::planning();
  nn::Rotation<T>(model, length, device, planning);
  Arena arena(planning.plan());
  const nn::Rotation<T> rotation(model, length, device, arena);
  const kernels::LatentHeads heads{.heads = table.bench().sizes().query_heads,
                                   .nope = model.qk_nope_head_dim,
                                   .rope = model.qk_rope_head_dim,
                                   .value = model.v_head_dim,
                                   .interleaved = rotation.is_interleaved()};
  const index_t width = heads.heads * heads.width(), expanded = heads.heads * (heads.nope + heads.value);
  const Buffer<std::int32_t> positions(n);  // all 0
  const kernels::LatentRotation<T> by{positions.vector(n), rotation.cosine(), rotation.sine()};
  const Buffer<T> query(n * width), key_value(n * expanded), rope(n * heads.rope), q(n * width), k(n * width),
      v(n * width);
  table.by_plan(table.in_layers(), [&](Device& on) {
    kernels::latent_forward<T>(on, heads, by, query.matrix(n, width), key_value.matrix(n, expanded),
                               rope.matrix(n, heads.rope), q.matrix(n, width), k.matrix(n, width), v.matrix(n, width));
  });
  table.by_plan(table.in_layers(), [&](Device& on) {
    kernels::latent_backward<T>(on, heads, by, q.matrix(n, width), k.matrix(n, width), v.matrix(n, width),
                                query.matrix(n, width), key_value.matrix(n, expanded));
  });
  table.by_plan(table.in_layers(), [&](Device& on) {
    kernels::latent_rope_backward<T>(on, heads, by, k.matrix(n, width), rope.matrix(n, heads.rope), 1);
  });
  return true;
}

#define NANOTRON_INSTANTIATE(T) template bool add_compressed_kernels<T>(KernelRows<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::apps::bench
