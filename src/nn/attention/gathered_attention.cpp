#include <algorithm>

#include "nanotron/kernels/attention/attention.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nn/attention/context_parallel_attention.hpp"

// Rank r of c has the queries and keys of one range of positions. Forward: its queries, the gathered keys and values.
// Backward: dq of its queries over all keys; dk and dv of its keys over all queries, with the gathered q, out, dout and
// log-sum-exp. No sum is split over ranks, so each result has the bits of one rank with all tokens.

namespace nanotron::nn {
namespace {

template <class T>
class GatheredAttention final : public AttentionCore<T> {
 public:
  using M = master_t<T>;
  using Geometry = AttentionGeometry<T>;

  GatheredAttention(const ContextShard& context, const AttentionGeometry<T>& geometry, index_t sequences,
                    comm::Group& cp, Arena& arena)
      : context_(context), geometry_(geometry), sequences_(sequences), cp_(&cp) {
    constexpr auto kind = MemoryKind::workspace;
    const index_t query = geometry_.query_columns(), key_value = 2 * geometry_.key_columns();
    const index_t rows = rows_sent(), all = sequences_ * length(), most = std::max(query, key_value);
    send_ = arena.take<T>(kind, rows * most);
    receive_ = arena.take<T>(kind, ranks() * rows * most);
    send_lse_ = arena.take<M>(kind, rows * heads());
    receive_lse_ = arena.take<M>(kind, ranks() * rows * heads());
    key_value_ = arena.take<T>(kind, all, key_value);
    unused_key_value_ = arena.take<T>(kind, all, key_value);
    for (auto* of_queries : {&query_, &out_, &dout_, &unused_query_}) *of_queries = arena.take<T>(kind, all, query);
    lse_ = arena.take<M>(kind, all * heads());
  }

  CoreSizes sizes(const Geometry& layer, Processor processor) const override {
    const index_t longest = context_.layout.longest_shard();
    const kernels::AttentionShape all = layer.shape(sequences_, length(), length());
    return {.lse = sequences_ * mine().size() * heads(),
            .tile_bytes = std::max(core_bytes(layer, layer.shape(sequences_, longest, length()), all, processor),
                                   core_bytes(layer, layer.shape(sequences_, length(), longest), all, processor))};
  }

  // Keys and values in both passes; in backward also q, out, dout and the log-sum-exp.
  PassTraffic traffic() const override {
    const auto element = static_cast<index_t>(sizeof(T)), master = static_cast<index_t>(sizeof(M));
    const auto bytes = [&](index_t of_row) { return comm::all_gather_bytes(rows_sent() * of_row, ranks()); };
    const index_t key_value = element * 2 * geometry_.key_columns();
    comm::StepTraffic backward{.context_parallel = bytes(key_value)};
    for (int i = 0; i < 3; ++i) backward += {.context_parallel = bytes(element * geometry_.query_columns())};
    backward += {.context_parallel = bytes(master * heads())};
    return {{.context_parallel = bytes(key_value)}, backward};
  }

  void forward(Device& device, const Geometry& layer, const TokenBatch& batch, const AttentionActivations<T>& act,
               const AttentionWorkspace<T>& work) override {
    gather(device, geometry_.key_value_of(act.qkv), MatrixRef<T>(key_value_));
    attend(device, layer, batch, act, work);
  }

  void backward(Device& device, const Geometry& layer, const TokenBatch& batch, const AttentionActivations<T>& act,
                const AttentionWorkspace<T>& work) override {
    gather(device, geometry_.key_value_of(act.qkv), MatrixRef<T>(key_value_));
    gather(device, geometry_.query_of(act.qkv), MatrixRef<T>(query_));
    gather(device, MatrixRef<T>(act.out), MatrixRef<T>(out_));
    gather(device, MatrixRef<T>(work.dout), MatrixRef<T>(dout_));
    gather_lse(device, act.lse);
    differentiate(device, layer, batch, act, work);
  }

  void prepare(Device& device, const Geometry& layer, const TokenBatch& batch, const AttentionActivations<T>& act,
               const AttentionWorkspace<T>& work) override {
    attend(device, layer, batch, act, work);
    differentiate(device, layer, batch, act, work);
  }

 private:
  int ranks() const { return context_.layout.ranks(); }
  index_t length() const { return context_.layout.length(); }
  index_t heads() const { return geometry_.heads.query.size(); }
  // Of each message: as many as the rank with the most tokens has.
  index_t rows_sent() const { return sequences_ * context_.layout.longest_shard(); }
  const Range& mine() const { return context_.tokens().first; }
  const Range& positions_of(int rank) const { return context_.layout[rank].first; }

  MatrixRef<T> keys_in(const Matrix<T>& all) const {
    return MatrixRef<T>(all).column_block(0, geometry_.key_columns());
  }
  MatrixRef<T> values_in(const Matrix<T>& all) const {
    return MatrixRef<T>(all).column_block(geometry_.key_columns(), geometry_.key_columns());
  }

  kernels::AttentionShape queries_here(const Geometry& layer, const TokenBatch& batch) const {
    kernels::AttentionShape shape = layer.shape(sequences_, mine().size(), length());
    shape.query_position = mine().begin;
    shape.key_position = 0;
    batch.add_to(shape);
    return shape;
  }
  kernels::AttentionShape keys_here(const Geometry& layer, const TokenBatch& batch) const {
    kernels::AttentionShape shape = layer.shape(sequences_, length(), mine().size());
    shape.query_position = 0;
    shape.key_position = mine().begin;
    batch.add_to(shape);
    return shape;
  }

  void attend(Device& device, const Geometry& layer, const TokenBatch& batch, const AttentionActivations<T>& act,
              const AttentionWorkspace<T>& work) const {
    kernels::attention_forward<T>(device, queries_here(layer, batch), geometry_.query_of(act.qkv), keys_in(key_value_),
                                  values_in(key_value_), act.out, act.lse, work.tiles);
    if (layer.denominator) {
      layer.denominator->forward(device, layer.shape(sequences_, mine().size(), mine().size()), act.out, act.lse);
    }
  }

  // The denominator's gradient is a sum over all tokens, which the first rank has too.
  void differentiate(Device& device, const Geometry& layer, const TokenBatch& batch, const AttentionActivations<T>& act,
                     const AttentionWorkspace<T>& work) const {
    if (layer.denominator && context_.rank == 0) {
      layer.denominator->backward(device, layer.shape(sequences_, length(), length()), MatrixRef<T>(out_),
                                  MatrixRef<T>(dout_), lse_, work.tiles);
    }
    kernels::attention_backward<T>(device, queries_here(layer, batch), geometry_.query_of(act.qkv), keys_in(key_value_),
                                   values_in(key_value_), MatrixRef<T>(act.out), MatrixRef<T>(work.dout), act.lse,
                                   geometry_.query_of(work.dqkv), keys_in(unused_key_value_),
                                   values_in(unused_key_value_), work.tiles);
    kernels::attention_backward<T>(device, keys_here(layer, batch), MatrixRef<T>(query_), geometry_.key_of(act.qkv),
                                   geometry_.value_of(act.qkv), MatrixRef<T>(out_), MatrixRef<T>(dout_), lse_,
                                   MatrixRef<T>(unused_query_), geometry_.key_of(work.dqkv),
                                   geometry_.value_of(work.dqkv), work.tiles);
  }

  // Rows of this rank's tokens -> rows of all tokens, by sequence and position.
  void gather(Device& device, const MatrixRef<T>& here, const MatrixRef<T>& all) {
    const index_t columns = here.columns, sent = rows_sent() * columns;
    kernels::copy_matrix<T>(device, here, MatrixRef<T>(send_.data(), here.rows, columns));
    comm::all_gather<T>(*cp_, send_.data(), static_cast<std::size_t>(sent), receive_.data(), device.stream());
    for (int r = 0; r < ranks(); ++r) {
      const Range& held = positions_of(r);
      const MatrixRef<T> message(receive_.data() + r * sent, sequences_ * held.size(), columns);
      for (index_t s = 0; s < sequences_; ++s) {
        kernels::copy_matrix<T>(device, message.row_block(s * held.size(), held.size()),
                                all.row_block(s * length() + held.begin, held.size()));
      }
    }
  }

  // lse and lse_ have a row per sequence and head, a column per token.
  void gather_lse(Device& device, const Vector<M>& lse) {
    const index_t rows = sequences_ * heads(), sent = rows_sent() * heads();
    kernels::copy_matrix<M>(device, MatrixRef<M>(lse.data(), rows, mine().size()),
                            MatrixRef<M>(send_lse_.data(), rows, mine().size()));
    comm::all_gather<M>(*cp_, send_lse_.data(), static_cast<std::size_t>(sent), receive_lse_.data(), device.stream());
    for (int r = 0; r < ranks(); ++r) {
      const Range& held = positions_of(r);
      kernels::copy_matrix<M>(device, MatrixRef<M>(receive_lse_.data() + r * sent, rows, held.size()),
                              MatrixRef<M>(lse_.data(), rows, length()).column_block(held.begin, held.size()));
    }
  }

  ContextShard context_;
  Geometry geometry_;  // heads and widths
  index_t sequences_;
  comm::Group* cp_;
  Vector<T> send_, receive_;
  Vector<M> send_lse_, receive_lse_;
  Matrix<T> key_value_, query_, out_, dout_;   // of all tokens
  Matrix<T> unused_key_value_, unused_query_;  // gradients that other ranks have whole
  Vector<M> lse_;
};

}  // namespace

template <class T>
std::unique_ptr<AttentionCore<T>> make_gathered_attention(const ContextShard& context,
                                                          const AttentionGeometry<T>& geometry, index_t sequences,
                                                          comm::Group& cp, Arena& arena) {
  return std::make_unique<GatheredAttention<T>>(context, geometry, sequences, cp, arena);
}

#define NANOTRON_INSTANTIATE(T)                                                                                        \
  template std::unique_ptr<AttentionCore<T>> make_gathered_attention(const ContextShard&, const AttentionGeometry<T>&, \
                                                                     index_t, comm::Group&, Arena&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::nn
