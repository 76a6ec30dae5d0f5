#include "nanotron/nn/attention/latent_attention.hpp"

#include <cmath>

#include "nanotron/kernels/norm/norm.hpp"
#include "nanotron/nn/attention/attention_core.hpp"

namespace nanotron::nn {
namespace {

// As RowGemm, of rows that are columns of a wider matrix; without bias and addend.
template <class T>
void multiply(Device& device, const RowGemm<T>& gemm, MatrixRef<const T> x, MatrixRef<T> y) {
  kernels::gemm<T, T>(device, kernels::Op::none, gemm.op, 1.0, x, gemm.weight, 0.0, y, gemm.order);
}

template <class T>
Matrix<T> first_rows(const Matrix<T>& m, index_t rows) {
  return m.extent(0) == 0 ? m : Matrix<T>(m.data(), rows, m.extent(1));
}

// (tokens, heads x width) as (tokens x heads, width).
template <class E>
MatrixRef<E> by_head(const Matrix<E>& m, index_t heads) {
  return {m.data(), static_cast<index_t>(m.extent(0)) * heads, static_cast<index_t>(m.extent(1)) / heads};
}

}  // namespace

template <class T>
PassTraffic LatentAttention<T>::traffic(const TensorParallelRegion<T>& region) const {
  PassTraffic traffic = PassTraffic{parts_.compressed->gather_traffic() + region.sum_traffic(),
                                    region.gather_traffic() + parts_.compressed->sum_traffic()} +
                        core_->traffic();
  if (!compresses_queries()) traffic += {region.gather_traffic(), region.sum_traffic()};
  return traffic;
}

template <class T>
comm::StepTraffic LatentAttention<T>::regather_traffic(const TensorParallelRegion<T>& region) const {
  const comm::StepTraffic compressed = parts_.compressed->gather_traffic();
  return compresses_queries() ? compressed : compressed + region.gather_traffic();
}

template <class T>
kernels::LatentRotation<T> LatentAttention<T>::rotation(const TokenBatch& batch) const {
  return {batch.positions, geometry_.rotation.cosine(), geometry_.rotation.sine()};
}

// c <- [norm(n Wqa^T) | norm(n Wkva^T) | k_rope]
template <class T>
void LatentAttention<T>::compress(Device& device, const BlockInput<T>& n, const CompressedActivations<T>& c) const {
  parts_.down.forward_part()(device, n.rows, c.raw);
  const MatrixRef<T> raw(c.raw), normed(c.normed);
  const auto norm = [&](const auto& columns, const NormWeights<T>& weights, const Matrix<M>& rstd) {
    kernels::head_rms_norm_forward<T>(device, columns(raw), weights.weight, geometry_.norm_eps, columns(normed), rstd);
  };
  if (compresses_queries())
    norm([&](const MatrixRef<T>& m) { return sizes_.query_of(m); }, parts_.query_norm, c.query_rstd);
  norm([&](const MatrixRef<T>& m) { return sizes_.key_value_of(m); }, parts_.key_value_norm, c.key_value_rstd);
  kernels::copy_matrix<T>(device, sizes_.rope_of(raw), sizes_.rope_of(normed));
}

// query <- c_q Wqb^T, or n Wq^T.
template <class T>
void LatentAttention<T>::project_query(Device& device, TensorParallelRegion<T>& region, const BlockInput<T>& n,
                                       Matrix<const T> compressed, Matrix<T> query) const {
  if (compresses_queries()) {
    multiply<T>(device, parts_.query.forward_part(), sizes_.query_of(MatrixRef<const T>(compressed)), query);
  } else {
    region.all_gather_gemm(device, {n.rows, {}}, parts_.query.forward_part(), query);
  }
}

// The heads' output without the padding of values.
template <class T>
Matrix<const T> LatentAttention<T>::values(Device& device, const Matrix<T>& out,
                                           const CompressedWorkspace<T>& work) const {
  if (sizes_.heads.value == sizes_.heads.width()) return out;
  const index_t heads = sizes_.heads.heads;
  kernels::copy_matrix<T>(device, by_head(out, heads).column_block(0, sizes_.heads.value), by_head(work.value, heads));
  return work.value;
}

template <class T>
Pending LatentAttention<T>::forward(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                                    const BlockInput<T>& n, const AttentionActivations<T>& act,
                                    const AttentionWorkspace<T>& work, Matrix<const T> addend, Matrix<T> y) const {
  const CompressedWorkspace<T>& w = *work.compressed;
  if (act.cache.capacity > 0) {
    absorbed(device, batch, region, n, act, w);
    return region.gemm_reduce(device, parts_.out.forward_part({}, addend), first_rows(w.value, batch.tokens()), y);
  }
  const CompressedActivations<T>& c = *act.compressed;
  compress(device, n, c);
  const Matrix<const T> all = parts_.compressed->gather(device, c.normed);
  const MatrixRef<const T> compressed(all);
  project_query(device, region, n, all, w.query);
  multiply<T>(device, parts_.key_value.forward_part(), sizes_.key_value_of(compressed), w.key_value);
  kernels::latent_forward<T>(device, sizes_.heads, rotation(batch), w.query, w.key_value, sizes_.rope_of(compressed),
                             geometry_.query_of(act.qkv), geometry_.key_of(act.qkv), geometry_.value_of(act.qkv));
  core_->forward(device, geometry_, batch, act, work);
  return region.gemm_reduce(device, parts_.out.forward_part({}, addend), values(device, act.out, w), y);
}

//   dWo += dy^T a            da = dy Wo
//   dq, dk, dv = attention backward of da (kernels/attention/attention.hpp)
//   dquery, [dkey | dvalue], drope = those of kernels/attention/latent.hpp
template <class T>
Matrix<const T> LatentAttention<T>::backward_inside(Device& device, const TokenBatch& batch,
                                                    TensorParallelRegion<T>& region, Matrix<const T> dy,
                                                    const AttentionActivations<T>& act,
                                                    const AttentionWorkspace<T>& work) const {
  const CompressedWorkspace<T>& w = *work.compressed;
  const bool is_padded = sizes_.heads.value < sizes_.heads.width();
  const index_t heads = sizes_.heads.heads;
  const Matrix<const T> all_dy =
      region.all_gather_gemm(device, {dy, {}}, parts_.out.backward_input(), is_padded ? w.value : work.dout);
  // The padding of dout is zero from the start on, and only multiplied by the zeros that pad v.
  if (is_padded)
    kernels::copy_matrix<T>(device, by_head(w.value, heads),
                            by_head(work.dout, heads).column_block(0, sizes_.heads.value));
  core_->backward(device, geometry_, batch, act, work);
  const MatrixRef<T> dk = geometry_.key_of(work.dqkv);
  kernels::latent_backward<T>(device, sizes_.heads, rotation(batch), geometry_.query_of(work.dqkv), dk,
                              geometry_.value_of(work.dqkv), w.query, w.key_value);
  kernels::latent_rope_backward<T>(device, sizes_.heads, rotation(batch), dk,
                                   sizes_.rope_of(MatrixRef<T>(parts_.compressed->partial_sum(w.gradient))),
                                   parts_.head_segments);
  return all_dy;
}

//   dc = [dquery Wqb | [dkey | dvalue] Wkvb | drope], summed over the group
//   d raw = norm backward of dc       dn = d raw [Wqa | Wkva] (+ dquery Wq, summed over the group)
template <class T>
Pending LatentAttention<T>::backward_input(Device& device, TensorParallelRegion<T>& region,
                                           const AttentionActivations<T>& act, const AttentionWorkspace<T>& work,
                                           Matrix<T> dn) const {
  const CompressedWorkspace<T>& w = *work.compressed;
  const MatrixRef<T> partial(parts_.compressed->partial_sum(w.gradient));
  if (compresses_queries()) multiply<T>(device, parts_.query.backward_input(), w.query, sizes_.query_of(partial));
  multiply<T>(device, parts_.key_value.backward_input(), w.key_value, sizes_.key_value_of(partial));
  Pending sum = parts_.compressed->start_sum(device, w.gradient);
  Pending of_query;
  if (!compresses_queries()) of_query = region.gemm_reduce(device, parts_.query.backward_input(), w.query, dn);
  sum.wait();
  norm_backward(device, *act.compressed, work);
  RowGemm<T> down = parts_.down.backward_input();
  if (!compresses_queries()) {
    of_query.wait();
    down.addend = dn;
  }
  down(device, w.gradient, dn);
  return Pending();
}

// In place.
template <class T>
void LatentAttention<T>::norm_backward(Device& device, const CompressedActivations<T>& c,
                                       const AttentionWorkspace<T>& work) const {
  const MatrixRef<T> gradient(work.compressed->gradient), raw(c.raw);
  const auto backward = [&](const MatrixRef<T>& dy, const MatrixRef<T>& x, const NormWeights<T>& weights,
                            const Matrix<M>& rstd) {
    kernels::head_rms_norm_backward<T>(device, dy, x, weights.weight, rstd, dy, weights.gradient, work.sums,
                                       parts_.norm_segments);
  };
  if (compresses_queries()) backward(sizes_.query_of(gradient), sizes_.query_of(raw), parts_.query_norm, c.query_rstd);
  backward(sizes_.key_value_of(gradient), sizes_.key_value_of(raw), parts_.key_value_norm, c.key_value_rstd);
}

template <class T>
void LatentAttention<T>::keep_gradients(Device& device, const AttentionActivations<T>& act,
                                        const AttentionWorkspace<T>& work) const {
  const CompressedWorkspace<T>& w = *work.compressed;
  const MatrixRef<T> kept(act.qkv);
  kernels::copy_matrix<T>(device, w.query, kept.column_block(0, sizes_.query_columns()));
  kernels::copy_matrix<T>(device, w.key_value, kept.column_block(sizes_.query_columns(), sizes_.key_value_columns()));
  kernels::copy_matrix<T>(device, w.gradient, act.compressed->raw);
}

template <class T>
PendingGather<T> LatentAttention<T>::start_regather(Device& device, TensorParallelRegion<T>& region,
                                                    const BlockInput<T>& n, const AttentionActivations<T>& act) const {
  return compresses_queries() ? parts_.compressed->start_regather(device, {act.compressed->normed, {}})
                              : region.start_regather(device, {n.rows, {}});
}

template <class T>
void LatentAttention<T>::backward_output_weight(Device& device, Matrix<const T> dy, const AttentionActivations<T>& act,
                                                const AttentionWorkspace<T>& work) const {
  parts_.out.backward_weight(device, dy, values(device, act.out, *work.compressed), work.sums);
}

//   dWqb += dquery^T c_q      dWkvb += [dkey | dvalue]^T c_kv      d[Wqa | Wkva] += (d raw)^T n
template <class T>
void LatentAttention<T>::backward_input_weight(Device& device, const BlockInput<T>& n, Matrix<const T> gathered,
                                               GradientsIn gradients, const AttentionActivations<T>& act,
                                               const AttentionWorkspace<T>& work) const {
  const CompressedWorkspace<T>& w = *work.compressed;
  const bool are_kept = gradients == GradientsIn::activations;
  const MatrixRef<T> kept(act.qkv);
  const MatrixRef<T> dquery = are_kept ? kept.column_block(0, sizes_.query_columns()) : MatrixRef<T>(w.query);
  const MatrixRef<T> dkey_value =
      are_kept ? kept.column_block(sizes_.query_columns(), sizes_.key_value_columns()) : MatrixRef<T>(w.key_value);
  const MatrixRef<const T> of_query(gathered);
  const MatrixRef<const T> compressed(compresses_queries() ? gathered
                                                           : parts_.compressed->gather(device, act.compressed->normed));
  parts_.query.backward_matrix(device, dquery, compresses_queries() ? sizes_.query_of(of_query) : of_query,
                               parts_.tokens);
  parts_.key_value.backward_matrix(device, dkey_value, sizes_.key_value_of(compressed), parts_.tokens);
  parts_.down.backward_matrix(device, are_kept ? act.compressed->raw : w.gradient, n.rows, parts_.hidden_rows);
}

// Generation: the output of attention to the cached tokens -> w.value.
template <class T>
void LatentAttention<T>::absorbed(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                                  const BlockInput<T>& n, const AttentionActivations<T>& act,
                                  const CompressedWorkspace<T>& work) const {
  const index_t tokens = batch.tokens(), rank = sizes_.key_value_rank, cached = sizes_.cached_columns();
  const kernels::LatentHeads& h = sizes_.heads;
  const CompressedActivations<T> c{first_rows(act.compressed->raw, tokens), first_rows(act.compressed->normed, tokens),
                                   first_rows(act.compressed->query_rstd, tokens),
                                   first_rows(act.compressed->key_value_rstd, tokens)};
  compress(device, n, c);
  fill_cache(device, batch, c, act.cache);
  const Matrix<T> query = first_rows(work.query, tokens), absorbed_query = first_rows(work.absorbed_query, tokens),
                  absorbed_out = first_rows(work.absorbed_out, tokens), value = first_rows(work.value, tokens);
  project_query(device, region, n, c.normed, query);
  const MatrixRef<const T> weight(parts_.key_value.forward_part().weight);
  const auto rows_of = [&](index_t head, index_t first, index_t count) {
    return weight.row_block(head * (h.nope + h.value) + first, count);
  };
  for (index_t head = 0; head < h.heads; ++head) {
    kernels::gemm<T, T>(device, kernels::Op::none, kernels::Op::none, 1.0,
                        MatrixRef<const T>(query).column_block(head * h.width(), h.nope), rows_of(head, 0, h.nope), 0.0,
                        MatrixRef<T>(absorbed_query).column_block(head * cached, rank));
  }
  const index_t rotated = h.heads * cached - rank;
  kernels::latent_rotate<T>(device, h, rotation(batch), h.heads,
                            MatrixRef<const T>(query).column_block(h.nope, sizes_.query_columns() - h.nope), h.width(),
                            MatrixRef<T>(absorbed_query).column_block(rank, rotated), cached);
  kernels::AttentionShape shape =
      absorbed_shape(geometry_.shape(batch.sequences, batch.length, act.cache.past + batch.length), sizes_);
  shape.key_rows = act.cache.capacity;
  const MatrixRef<T> keys(act.cache.keys);
  kernels::attention_forward<T>(device, shape, absorbed_query, keys, keys, absorbed_out, act.lse, work.absorbed_tiles);
  if (geometry_.denominator) geometry_.denominator->forward(device, shape, absorbed_out, act.lse);
  for (index_t head = 0; head < h.heads; ++head) {
    kernels::gemm<T, T>(device, kernels::Op::none, kernels::Op::transpose, 1.0,
                        MatrixRef<const T>(absorbed_out).column_block(head * cached, rank),
                        rows_of(head, h.nope, h.value), 0.0, MatrixRef<T>(value).column_block(head * h.value, h.value));
  }
}

// c_kv | R k_rope of the tokens -> the cache, after those of earlier tokens.
template <class T>
void LatentAttention<T>::fill_cache(Device& device, const TokenBatch& batch, const CompressedActivations<T>& c,
                                    const KeyValueCache<T>& cache) const {
  const MatrixRef<T> normed(c.normed), keys(cache.keys);
  const index_t length = batch.length, rank = sizes_.key_value_rank, rope = sizes_.heads.rope;
  for (index_t s = 0; s < batch.sequences; ++s) {
    const MatrixRef<T> to = keys.row_block(s * cache.capacity + cache.past, length);
    const MatrixRef<T> from = normed.row_block(s * length, length);
    kernels::copy_matrix<T>(device, sizes_.key_value_of(from), to.column_block(0, rank));
    kernels::LatentRotation<T> turns = rotation(batch);
    turns.positions = Vector<const std::int32_t>(batch.positions.data() + s * length, length);
    kernels::latent_rotate<T>(device, sizes_.heads, turns, 1, sizes_.rope_of(from), rope, to.column_block(rank, rope),
                              rope);
  }
}

kernels::AttentionShape absorbed_shape(kernels::AttentionShape shape, const LatentSizes& sizes) {
  shape.scores.scale = shape.scores.scale_or(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
  shape.head_dim = sizes.cached_columns();
  shape.key_heads = 1;
  shape.group = shape.first_query_head + shape.query_heads;
  shape.first_key_head = 0;
  return shape;
}

NANOTRON_INSTANTIATE_CLASS(LatentAttention)

}  // namespace nanotron::nn
