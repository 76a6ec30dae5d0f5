#include "nanotron/nn/attention/attention_core.hpp"

#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nn/attention/context_parallel_attention.hpp"

namespace nanotron::nn {
namespace {

template <class T>
class LocalAttention final : public AttentionCore<T> {
 public:
  using Geometry = AttentionGeometry<T>;

  LocalAttention(index_t sequences, index_t length, index_t key_length)
      : sequences_(sequences), length_(length), key_length_(key_length) {}

  CoreSizes sizes(const Geometry& layer, Processor processor) const override {
    return {.lse = sequences_ * length_ * layer.heads.query.size(),
            .tile_bytes = core_bytes(layer, layer.shape(sequences_, length_, key_length_),
                                     layer.shape(sequences_, length_, length_), processor)};
  }
  PassTraffic traffic() const override { return {}; }

  void forward(Device& device, const Geometry& layer, const TokenBatch& batch, const AttentionActivations<T>& act,
               const AttentionWorkspace<T>& work) override {
    if (act.cache.capacity > 0) return forward_cached(device, layer, batch, act, work);
    kernels::attention_forward<T>(device, shape_of(layer, batch), layer.query_of(act.qkv), layer.key_of(act.qkv),
                                  layer.value_of(act.qkv), act.out, act.lse, work.tiles);
    if (layer.denominator) layer.denominator->forward(device, shape_of(layer, batch), act.out, act.lse);
  }

  void backward(Device& device, const Geometry& layer, const TokenBatch& batch, const AttentionActivations<T>& act,
                const AttentionWorkspace<T>& work) override {
    if (layer.denominator) {
      layer.denominator->backward(device, shape_of(layer, batch), MatrixRef<T>(act.out), MatrixRef<T>(work.dout),
                                  act.lse, work.tiles);
    }
    kernels::attention_backward<T>(device, shape_of(layer, batch), layer.query_of(act.qkv), layer.key_of(act.qkv),
                                   layer.value_of(act.qkv), MatrixRef<T>(act.out), MatrixRef<T>(work.dout), act.lse,
                                   layer.query_of(work.dqkv), layer.key_of(work.dqkv), layer.value_of(work.dqkv),
                                   work.tiles);
  }

  void prepare(Device& device, const Geometry& layer, const TokenBatch& batch, const AttentionActivations<T>& act,
               const AttentionWorkspace<T>& work) override {
    forward(device, layer, batch, act, work);
    backward(device, layer, batch, act, work);
  }

 private:
  // Keys and values -> the cache, after those of earlier tokens; attention to all of them.
  void forward_cached(Device& device, const Geometry& layer, const TokenBatch& batch,
                      const AttentionActivations<T>& act, const AttentionWorkspace<T>& work) {
    const KeyValueCache<T>& cache = act.cache;
    const index_t length = batch.length;
    const MatrixRef<T> keys(cache.keys), values(cache.values);
    for (index_t s = 0; s < batch.sequences; ++s) {
      const index_t row = s * cache.capacity + cache.past;
      kernels::copy_matrix<T>(device, layer.key_of(act.qkv).row_block(s * length, length), keys.row_block(row, length));
      kernels::copy_matrix<T>(device, layer.value_of(act.qkv).row_block(s * length, length),
                              values.row_block(row, length));
    }
    kernels::AttentionShape shape = layer.shape(batch.sequences, length, cache.past + length);
    shape.key_rows = cache.capacity;
    kernels::attention_forward<T>(device, shape, layer.query_of(act.qkv), keys, values, act.out, act.lse, work.tiles);
    if (layer.denominator) layer.denominator->forward(device, shape, act.out, act.lse);
  }

  kernels::AttentionShape shape_of(const Geometry& layer, const TokenBatch& batch) const {
    kernels::AttentionShape shape = layer.shape(batch.sequences, batch.length, batch.length);
    batch.add_to(shape);
    return shape;
  }

  index_t sequences_, length_, key_length_;
};

}  // namespace

template <class T>
std::unique_ptr<AttentionCore<T>> make_attention_core(const ContextShard& context, const AttentionGeometry<T>& geometry,
                                                      index_t sequences, index_t key_length,
                                                      const ContextGroups& groups, const SharedKeys& keys,
                                                      Arena& arena) {
  if (keys.piece > 0) {
    auto core =
        make_attention_core<T>(context, with_pieces(geometry, keys.piece), sequences, key_length, groups, {}, arena);
    return make_shared_key_attention<T>(geometry, keys, sequences * context.tokens().length(), std::move(core), arena);
  }
  const ContextDegrees& degrees = context.degrees;
  if (degrees.all_to_all > 1) return make_all_to_all_attention<T>(context, geometry, sequences, groups, arena);
  if (degrees.gathered > 1) return make_gathered_attention<T>(context, geometry, sequences, *groups.ring, arena);
  if (degrees.ring > 1) return make_ring_attention<T>(context, geometry, sequences, *groups.ring, arena);
  return std::make_unique<LocalAttention<T>>(sequences, context.layout.length(), key_length);
}

#define NANOTRON_INSTANTIATE(T)                                                                                       \
  template std::unique_ptr<AttentionCore<T>> make_attention_core<T>(const ContextShard&, const AttentionGeometry<T>&, \
                                                                    index_t, index_t, const ContextGroups&,           \
                                                                    const SharedKeys&, Arena&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::nn
