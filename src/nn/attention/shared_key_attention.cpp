#include <algorithm>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nn/attention/context_parallel_attention.hpp"

// The query heads of a key head are split into pieces of as many heads each, on one rank or on several:
//
//   dk = tree over the pieces p of dk_p          dk_p: of the query heads of p alone, rounded; the same for v
//
// The core inside computes dk_p: to it each piece has a key head of its own, a copy. Ranks that have pieces of the same
// head gather them, and each has the whole dk and dv.

namespace nanotron::nn {
namespace {

template <class T>
class SharedKeyAttention final : public AttentionCore<T> {
 public:
  using Geometry = AttentionGeometry<T>;

  SharedKeyAttention(const Geometry& layer, const SharedKeys& keys, index_t tokens,
                     std::unique_ptr<AttentionCore<T>> core, Arena& arena)
      : keys_(keys),
        of_key_(layer.heads.group / keys.piece),
        head_dim_(layer.head_dim),
        tokens_(tokens),
        core_(std::move(core)) {
    const Geometry apart = with_pieces(layer, keys.piece);
    constexpr auto kind = MemoryKind::workspace;
    qkv_ = arena.take<T>(kind, tokens, apart.qkv_columns());
    dqkv_ = arena.take<T>(kind, tokens, apart.qkv_columns());
    for (const Range& heads : keys.query_heads) {
      are_split_ = are_split_ || heads.begin % layer.heads.group != 0;
      max_pieces_ = std::max(max_pieces_, heads.size() / keys.piece);
    }
    if (!are_split_) return;
    send_ = arena.take<T>(kind, message());
    receive_ = arena.take<T>(kind, keys.tp->size() * message());
    addends_ = arena.take<T>(kind, tokens, of_key_ * head_dim_);
  }

  CoreSizes sizes(const Geometry& layer, Processor processor) const override {
    return core_->sizes(with_pieces(layer, keys_.piece), processor);
  }

  PassTraffic traffic() const override {
    const index_t bytes = are_split_ ? message() * static_cast<index_t>(sizeof(T)) : 0;
    return core_->traffic() +
           PassTraffic{.backward = {.tensor_parallel = comm::all_gather_bytes(bytes, keys_.tp->size())}};
  }

  void forward(Device& device, const Geometry& layer, const TokenBatch& batch, const AttentionActivations<T>& act,
               const AttentionWorkspace<T>& work) override {
    NANOTRON_REQUIRE(act.cache.capacity == 0, "generation adds no gradients of keys");
    const Geometry apart = with_pieces(layer, keys_.piece);
    core_->forward(device, apart, batch, copy_keys(device, layer, apart, act), work);
  }

  void backward(Device& device, const Geometry& layer, const TokenBatch& batch, const AttentionActivations<T>& act,
                const AttentionWorkspace<T>& work) override {
    const Geometry apart = with_pieces(layer, keys_.piece);
    core_->backward(device, apart, batch, copy_keys(device, layer, apart, act), of_pieces(work));
    if (are_split_) {
      kernels::copy_matrix<T>(device, apart.key_value_of(dqkv_),
                              MatrixRef<T>(send_.data(), tokens_, 2 * apart.key_columns()));
      comm::all_gather<T>(*keys_.tp, send_.data(), send_.size(), receive_.data(), device.stream());
    }
    add_pieces(device, layer, apart, work);
  }

  void prepare(Device& device, const Geometry& layer, const TokenBatch& batch, const AttentionActivations<T>& act,
               const AttentionWorkspace<T>& work) override {
    const Geometry apart = with_pieces(layer, keys_.piece);
    core_->prepare(device, apart, batch, copy_keys(device, layer, apart, act), of_pieces(work));
    add_pieces(device, layer, apart, work);
  }

 private:
  // Elements that a rank sends: dk and dv of its pieces, or of as many as the rank with the most.
  index_t message() const { return tokens_ * 2 * max_pieces_ * head_dim_; }
  MatrixRef<T> head_of(const MatrixRef<T>& heads, index_t head) const {
    return heads.column_block(head * head_dim_, head_dim_);
  }

  AttentionActivations<T> copy_keys(Device& device, const Geometry& layer, const Geometry& apart,
                                    const AttentionActivations<T>& act) const {
    kernels::copy_matrix<T>(device, layer.query_of(act.qkv), apart.query_of(qkv_));
    const Range& pieces = apart.heads.key;
    for (index_t p = pieces.begin; p < pieces.end; ++p) {
      const index_t head = p / of_key_ - layer.heads.key.begin, to = p - pieces.begin;
      kernels::copy_matrix<T>(device, head_of(layer.key_of(act.qkv), head), head_of(apart.key_of(qkv_), to));
      kernels::copy_matrix<T>(device, head_of(layer.value_of(act.qkv), head), head_of(apart.value_of(qkv_), to));
    }
    AttentionActivations<T> copied = act;
    copied.qkv = qkv_;
    return copied;
  }

  AttentionWorkspace<T> of_pieces(const AttentionWorkspace<T>& work) const {
    AttentionWorkspace<T> of_pieces = work;
    of_pieces.dqkv = dqkv_;
    return of_pieces;
  }

  void add_pieces(Device& device, const Geometry& layer, const Geometry& apart, const AttentionWorkspace<T>& work) {
    kernels::copy_matrix<T>(device, apart.query_of(dqkv_), layer.query_of(work.dqkv));
    const Range& heads = layer.heads.key;
    for (index_t head = heads.begin; head < heads.end; ++head) {
      const MatrixRef<T> dk = head_of(layer.key_of(work.dqkv), head - heads.begin),
                         dv = head_of(layer.value_of(work.dqkv), head - heads.begin);
      if (are_split_) {
        add_received(device, head, 0, dk);
        add_received(device, head, 1, dv);
      } else {
        const index_t columns = of_key_ * head_dim_, first = (head - heads.begin) * columns;
        kernels::add_column_tree<T>(device, apart.key_of(dqkv_).column_block(first, columns), dk);
        kernels::add_column_tree<T>(device, apart.value_of(dqkv_).column_block(first, columns), dv);
      }
    }
  }

  // block 0: of keys, 1: of values.
  void add_received(Device& device, index_t head, index_t block, const MatrixRef<T>& sum) {
    for (index_t p = 0; p < of_key_; ++p) {
      const index_t query_head = (head * of_key_ + p) * keys_.piece;
      const auto rank =
          std::ranges::find_if(keys_.query_heads, [&](const Range& r) { return r.contains(query_head); }) -
          keys_.query_heads.begin();
      const Range& there = keys_.query_heads[static_cast<std::size_t>(rank)];
      const index_t pieces = there.size() / keys_.piece, at = (query_head - there.begin) / keys_.piece;
      const MatrixRef<T> message_there(receive_.data() + rank * message(), tokens_, 2 * pieces * head_dim_);
      kernels::copy_matrix<T>(device, head_of(message_there, block * pieces + at), head_of(MatrixRef<T>(addends_), p));
    }
    kernels::add_column_tree<T>(device, MatrixRef<T>(addends_), sum);
  }

  SharedKeys keys_;
  index_t of_key_, head_dim_;  // of_key_: pieces of a key head
  index_t tokens_, max_pieces_ = 0;
  bool are_split_ = false;  // the pieces of a key head, over several ranks
  std::unique_ptr<AttentionCore<T>> core_;
  Matrix<T> qkv_, dqkv_;      // q | k of each piece | v of each piece
  Vector<T> send_, receive_;  // dk_p | dv_p, of this rank and of all
  Matrix<T> addends_;         // of one key head
};

}  // namespace

template <class T>
AttentionGeometry<T> with_pieces(AttentionGeometry<T> layer, index_t piece) {
  HeadShard& heads = layer.heads;
  heads.group = piece;
  heads.key = heads.owned_key = {heads.query.begin / piece, heads.query.end / piece};
  return layer;
}

template <class T>
std::unique_ptr<AttentionCore<T>> make_shared_key_attention(const AttentionGeometry<T>& layer, const SharedKeys& keys,
                                                            index_t tokens, std::unique_ptr<AttentionCore<T>> core,
                                                            Arena& arena) {
  return std::make_unique<SharedKeyAttention<T>>(layer, keys, tokens, std::move(core), arena);
}

#define NANOTRON_INSTANTIATE(T)                                             \
  template AttentionGeometry<T> with_pieces(AttentionGeometry<T>, index_t); \
  template std::unique_ptr<AttentionCore<T>> make_shared_key_attention(     \
      const AttentionGeometry<T>&, const SharedKeys&, index_t, std::unique_ptr<AttentionCore<T>>, Arena&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::nn
