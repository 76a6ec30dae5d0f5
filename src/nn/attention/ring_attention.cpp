#include "nn/attention/context_parallel_attention.hpp"

#include <limits>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/attention/attention.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/nn/attention/ring_reach.hpp"

// In step i rank r computes with the keys and values of rank (r - i) mod c, and receives the next block meanwhile. With
// a zigzag layout all ranks have equal work in each step. A block goes only as far as some query reads it (RingReach).

namespace nanotron::nn {
namespace {

using comm::Neighbour;

// A block in flight to the next rank, and one from the previous rank.
struct Passage {
  comm::Request out, in;
  void test() {
    out.test();
    in.test();
  }
  void wait() {
    out.wait();
    in.wait();
  }
};

template <class T>
class RingAttention final : public AttentionCore<T> {
 public:
  using M = master_t<T>;
  using Geometry = AttentionGeometry<T>;
  using Piece = SequenceShard::Piece;

  RingAttention(const ContextShard& context, const AttentionGeometry<T>& geometry, index_t sequences, comm::Group& cp,
                Arena& arena)
      : context_(context), geometry_(geometry), sequences_(sequences), cp_(&cp) {
    constexpr auto kind = MemoryKind::workspace;
    const index_t tokens = sequences * context_.tokens().length(), query = geometry_.query_columns();
    const index_t block = sequences * context_.layout.longest_shard(), key_value = 2 * geometry_.key_columns();
    for (auto& buffer : block_) buffer = arena.take<T>(kind, block, key_value);
    for (auto& buffer : gradient_) buffer = arena.take<M>(kind, block, key_value);
    arriving_ = arena.take<M>(kind, block, key_value);
    part_block_ = arena.take<T>(kind, block, key_value);
    part_ = arena.take<T>(kind, tokens, query);
    part_lse_ = arena.take<M>(kind, tokens * geometry_.heads.query.size());
    sum_ = arena.take<M>(kind, tokens, query);
    cp_->open_messages();
  }

  CoreSizes sizes(const Geometry& layer, Processor processor) const override {
    const index_t longest = context_.layout.longest_piece();
    return {.lse = sequences_ * context_.tokens().length() * geometry_.heads.query.size(),
            .tile_bytes = core_bytes(layer, layer.shape(sequences_, longest, longest), shape_of_all(layer), processor)};
  }

  // At most, where documents end the way of a block: both passes send all blocks but the next rank's; backward also
  // sends the gradients of all blocks.
  PassTraffic traffic() const override {
    const SequenceLayout& layout = context_.layout;
    const index_t token = sequences_ * 2 * geometry_.key_columns();
    const index_t blocks = token * (layout.length() - layout[(context_.rank + 1) % layout.ranks()].length());
    const auto element = static_cast<index_t>(sizeof(T)), master = static_cast<index_t>(sizeof(M));
    return {{.context_parallel = comm::message_bytes(element * blocks)},
            {.context_parallel = comm::message_bytes(element * blocks + master * token * layout.length())}};
  }

  void forward(Device& device, const Geometry& layer, const TokenBatch& batch, const AttentionActivations<T>& act,
               const AttentionWorkspace<T>& work) override {
    const MatrixRef<T> query = geometry_.query_of(act.qkv);
    kernels::copy_matrix<T>(device, geometry_.key_value_of(act.qkv), block_of(block_[0], 0));
    kernels::fill<M>(device, flat(sum_), 0.0);
    kernels::fill<M>(device, act.lse, static_cast<double>(std::numeric_limits<M>::lowest()));
    for (int step = 0; step < ranks(); ++step) {
      Passage passage = pass_block(device, batch, step);
      const MatrixRef<T> block = block_of(block_[step % 2], step);
      for_each_pair(layer, step, batch, [&](const kernels::AttentionShape& shape, index_t q, index_t k) {
        kernels::attention_forward<T>(device, shape, from(query, q), key_in(block, k), value_in(block, k),
                                      from(MatrixRef<T>(part_), q), from(part_lse_, q), work.tiles);
        kernels::merge_attention<T>(device, shape, from(MatrixRef<T>(part_), q), from(part_lse_, q),
                                    from(MatrixRef<M>(sum_), q), from(act.lse, q));
        passage.test();
      });
      passage.wait();
    }
    kernels::round_matrix<T>(device, MatrixRef<M>(sum_), act.out);
    if (layer.denominator) layer.denominator->forward(device, shape_of_all(layer), act.out, act.lse);
  }

  // The gradient of a block travels with its keys: to the next rank after each step, to the block's own rank after the
  // last step.
  void backward(Device& device, const Geometry& layer, const TokenBatch& batch, const AttentionActivations<T>& act,
                const AttentionWorkspace<T>& work) override {
    if (layer.denominator) {
      layer.denominator->backward(device, shape_of_all(layer), MatrixRef<T>(act.out), MatrixRef<T>(work.dout), act.lse,
                                  work.tiles);
    }
    kernels::copy_matrix<T>(device, geometry_.key_value_of(act.qkv), block_of(block_[0], 0));
    kernels::fill<M>(device, flat(sum_), 0.0);
    Passage gradients;
    for (int step = 0; step < ranks(); ++step) {
      Passage passage = pass_block(device, batch, step);
      if (step == 0 || travels(batch, step)) {
        add_pairs(device, layer, step, batch, act, work, [&] {
          passage.test();
          gradients.test();
        });
      }
      gradients.wait();
      gradients = pass_gradient(device, batch, step, work);
      passage.wait();
    }
    kernels::round_matrix<T>(device, MatrixRef<M>(sum_), geometry_.query_of(work.dqkv));
    gradients.wait();
    if (travels(batch, 0)) kernels::round_matrix<T>(device, block_of(arriving_, 0), geometry_.key_value_of(work.dqkv));
  }

  void prepare(Device& device, const Geometry& layer, const TokenBatch& batch, const AttentionActivations<T>& act,
               const AttentionWorkspace<T>& work) override {
    for (int step = 0; step < ranks(); ++step) {
      const MatrixRef<T> block = block_of(block_[step % 2], step);
      for_each_pair(layer, step, batch, [&](const kernels::AttentionShape& shape, index_t q, index_t k) {
        kernels::attention_forward<T>(device, shape, from(geometry_.query_of(act.qkv), q), key_in(block, k),
                                      value_in(block, k), from(MatrixRef<T>(part_), q), from(part_lse_, q), work.tiles);
      });
      add_pairs(device, layer, step, batch, act, work, [] {});
    }
  }

 private:
  int ranks() const { return context_.layout.ranks(); }
  const SequenceShard& mine() const { return context_.tokens(); }
  const SequenceShard& shard_in(int step) const { return context_.layout[(context_.rank - step + ranks()) % ranks()]; }
  std::size_t block_size(int step) const {
    return static_cast<std::size_t>(sequences_ * shard_in(step).length() * 2 * geometry_.key_columns());
  }
  template <class E>
  MatrixRef<E> block_of(const Matrix<E>& buffer, int step) const {
    return MatrixRef<E>(buffer).row_block(0, sequences_ * shard_in(step).length());
  }

  // Of all queries here.
  kernels::AttentionShape shape_of_all(const Geometry& layer) const {
    return layer.shape(sequences_, mine().length(), mine().length());
  }

  // The rows of x, or entries of lse, from token `first` of the first sequence on.
  template <class E>
  static MatrixRef<E> from(MatrixRef<E> x, index_t first) {
    return x.row_block(first, x.rows - first);
  }
  static Vector<M> from(const Vector<M>& lse, index_t first) {
    return Vector<M>(lse.data() + first, static_cast<index_t>(lse.extent(0)) - first);
  }
  MatrixRef<T> key_in(MatrixRef<T> block, index_t first) const {
    return from(block.column_block(0, geometry_.key_columns()), first);
  }
  MatrixRef<T> value_in(MatrixRef<T> block, index_t first) const {
    return from(block.column_block(geometry_.key_columns(), geometry_.key_columns()), first);
  }

  // How far the block of this step goes in all, and whether its gradient comes back: round the whole ring.
  int hops(const TokenBatch& batch, int step) const {
    return batch.reach == nullptr ? ranks() - 1 : batch.reach->hops((context_.rank - step + 2 * ranks()) % ranks());
  }
  bool travels(const TokenBatch& batch, int step) const { return hops(batch, step) > 0; }

  // Starts to send the block of this step and to receive that of the next, where they go that far.
  Passage pass_block(Device& device, const TokenBatch& batch, int step) {
    Passage passage;
    if (hops(batch, step) > step) {
      passage.out =
          comm::start_send<T>(*cp_, block_[step % 2].data(), block_size(step), Neighbour::next, device.stream());
    }
    if (step + 1 < ranks() && hops(batch, step + 1) > step) {
      passage.in = comm::start_receive<T>(*cp_, block_[(step + 1) % 2].data(), block_size(step + 1),
                                          Neighbour::previous, device.stream());
    }
    return passage;
  }

  // The same of the gradients. That of a block that stays here is complete after the first step.
  Passage pass_gradient(Device& device, const TokenBatch& batch, int step, const AttentionWorkspace<T>& work) {
    Passage passage;
    const Matrix<M> here = gradient_[step % 2];
    const auto entries = static_cast<index_t>(block_size(step));
    if (travels(batch, step)) {
      if (step > 0) kernels::add<M>(device, Vector<M>(arriving_.data(), entries), Vector<M>(here.data(), entries));
      passage.out = comm::start_send<M>(*cp_, here.data(), block_size(step), Neighbour::next, device.stream());
    } else if (step == 0) {
      kernels::round_matrix<T>(device, block_of(here, 0), geometry_.key_value_of(work.dqkv));
    }
    if (travels(batch, step + 1)) {
      passage.in =
          comm::start_receive<M>(*cp_, arriving_.data(), block_size(step + 1), Neighbour::previous, device.stream());
    }
    return passage;
  }

  // f(shape, query token, key token) for each pair of a query piece and a key piece with causal overlap; the tokens are
  // the first of each piece.
  template <class F>
  void for_each_pair(const Geometry& layer, int step, const TokenBatch& batch, const F& f) const {
    if (hops(batch, step) < step) return;
    const SequenceShard& theirs = shard_in(step);
    int number = 0;
    for (const Piece& query : mine().pieces()) {
      const int piece = number++;
      for (const Piece& key : theirs.pieces()) {
        if (query.positions.size() == 0 || key.positions.size() == 0) continue;
        if (key.positions.begin >= query.positions.end) continue;
        if (batch.reach != nullptr && !batch.reach->meets(context_.rank, piece, key.positions.end)) continue;
        const index_t window = layer.window;
        if (window > 0 && key.positions.end <= query.positions.begin + 1 - window) continue;  // outside every window
        kernels::AttentionShape shape = layer.shape(sequences_, query.positions.size(), key.positions.size());
        shape.query_rows = mine().length();
        shape.key_rows = theirs.length();
        shape.query_position = query.positions.begin;
        shape.key_position = key.positions.begin;
        batch.add_to(shape);
        f(shape, query.token, key.token);
      }
    }
  }

  // Adds dq to sum_; overwrites gradient_ with dk, dv of the step's block.
  template <class Between>
  void add_pairs(Device& device, const Geometry& layer, int step, const TokenBatch& batch,
                 const AttentionActivations<T>& act, const AttentionWorkspace<T>& work, const Between& between) {
    const MatrixRef<T> block = block_of(block_[step % 2], step), part_block = block_of(part_block_, step);
    const MatrixRef<M> gradient = block_of(gradient_[step % 2], step);
    kernels::fill<M>(device, Vector<M>(gradient.data, static_cast<index_t>(block_size(step))), 0.0);
    for_each_pair(layer, step, batch, [&](const kernels::AttentionShape& shape, index_t q, index_t k) {
      kernels::attention_backward<T>(device, shape, from(geometry_.query_of(act.qkv), q), key_in(block, k),
                                     value_in(block, k), from(MatrixRef<T>(act.out), q),
                                     from(MatrixRef<T>(work.dout), q), from(act.lse, q), from(MatrixRef<T>(part_), q),
                                     key_in(part_block, k), value_in(part_block, k), work.tiles);
      for (index_t s = 0; s < sequences_; ++s) {
        const index_t query = s * shape.query_rows + q, key = s * shape.key_rows + k;
        kernels::accumulate_matrix<T>(device, MatrixRef<T>(part_).row_block(query, shape.query_length),
                                      MatrixRef<M>(sum_).row_block(query, shape.query_length));
        kernels::accumulate_matrix<T>(device, part_block.row_block(key, shape.key_length),
                                      gradient.row_block(key, shape.key_length));
      }
      between();
    });
  }

  ContextShard context_;
  Geometry geometry_;  // heads and widths
  index_t sequences_;
  comm::Group* cp_;
  Matrix<T> block_[2];     // (tokens of a rank, k | v): the block in use, and the one being received
  Matrix<M> gradient_[2];  // its gradient, and the one being sent
  Matrix<M> arriving_;     // the gradient received from the previous rank
  Matrix<T> part_block_;   // dk | dv of one pair
  Matrix<T> part_;         // (tokens, q): out or dq of one pair
  Vector<M> part_lse_;
  Matrix<M> sum_;  // (tokens, q): out or dq
};

}  // namespace

template <class T>
std::unique_ptr<AttentionCore<T>> make_ring_attention(const ContextShard& context, const AttentionGeometry<T>& geometry,
                                                      index_t sequences, comm::Group& cp, Arena& arena) {
  return std::make_unique<RingAttention<T>>(context, geometry, sequences, cp, arena);
}

#define NANOTRON_INSTANTIATE(T)                                                                                    \
  template std::unique_ptr<AttentionCore<T>> make_ring_attention(const ContextShard&, const AttentionGeometry<T>&, \
                                                                 index_t, comm::Group&, Arena&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::nn
