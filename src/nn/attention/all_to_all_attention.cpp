#include "nn/attention/context_parallel_attention.hpp"

#include <algorithm>
#include <array>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/attention/attention.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"

// Neighbours exchange tokens for heads; attention of all their tokens is that of another core, for a part of the heads.
// A message between two ranks is a matrix: the tokens of one rank, the columns of the other's heads.

namespace nanotron::nn {
namespace {

// Rank `rank`'s share of the query heads here, with the key heads that they read.
HeadShard heads_of(const HeadShard& here, int ranks, int rank) {
  const Range part = shard_range(here.query.size(), ranks, rank);
  HeadShard heads{.query = {here.query.begin + part.begin, here.query.begin + part.end}, .group = here.group};
  heads.key = {heads.query.begin / here.group, (heads.query.end - 1) / here.group + 1};
  return heads;
}

// The columns of q, of k and of v that a rank works on.
using Blocks = std::array<Range, 3>;

index_t width_of(const Blocks& blocks) { return blocks[0].size() + blocks[1].size() + blocks[2].size(); }

Blocks qkv_blocks(const HeadShard& here, const HeadShard& part, index_t head_dim) {
  const index_t keys = here.query.size(), values = keys + here.key.size();
  const auto columns = [&](index_t first_head, const Range& heads, index_t begin) {
    const index_t at = (first_head + heads.begin - begin) * head_dim;
    return Range{at, at + heads.size() * head_dim};
  };
  return {columns(0, part.query, here.query.begin), columns(keys, part.key, here.key.begin),
          columns(values, part.key, here.key.begin)};
}

template <class T>
class AllToAllAttention final : public AttentionCore<T> {
 public:
  using M = master_t<T>;
  using Geometry = AttentionGeometry<T>;

  AllToAllAttention(const ContextShard& context, const AttentionGeometry<T>& geometry, index_t sequences,
                    const ContextGroups& groups, Arena& arena)
      : geometry_(geometry),
        part_(geometry),
        sequences_(sequences),
        group_(groups.all_to_all),
        rank_(context.rank % context.degrees.all_to_all) {
    const ContextDegrees parts{context.degrees.ring, 1};
    const int ranks = context.degrees.all_to_all, part = context.rank / ranks;
    const SequenceLayout layout(parts, context.layout.length());
    together_ = layout[part];
    for (int r = 0; r < ranks; ++r) shards_.push_back(context.layout[part * ranks + r]);
    part_.heads = heads_of(geometry.heads, ranks, rank_);
    core_ = make_attention_core<T>({parts, layout, part}, part_, sequences, context.layout.length(),
                                   {.ring = groups.ring}, {}, arena);
    index_t sent = 0;
    for (int r = 0; r < ranks; ++r) {
      blocks_.push_back(qkv_blocks(geometry.heads, heads_of(geometry.heads, ranks, r), geometry.head_dim));
      sent += width_of(blocks_.back());
    }
    counts_here_.resize(blocks_.size());
    counts_there_.resize(blocks_.size());
    constexpr auto kind = MemoryKind::workspace;
    const index_t tokens = tokens_of(rank_), all = all_tokens();
    const index_t elements = std::max(tokens * sent, all * part_.qkv_columns());
    send_ = arena.take<T>(kind, elements);
    receive_ = arena.take<T>(kind, elements);
    all_dout_ = arena.take<T>(kind, all, part_.query_columns());
    all_dqkv_ = arena.take<T>(kind, all, part_.qkv_columns());
    key_value_sum_ = arena.take<M>(kind, tokens, 2 * geometry.key_columns());
  }

  CoreSizes sizes(const Geometry& layer, Processor processor) const override {
    const CoreSizes of_core = core_->sizes(part_of(layer), processor);
    return {.lse = of_core.lse,
            .rows = all_tokens(),
            .qkv_columns = part_.qkv_columns(),
            .out_columns = part_.query_columns(),
            .tile_bytes = of_core.tile_bytes};
  }

  // Forward: q, k, v to the ranks that compute their heads, and the output back. Backward: dout there, dq, dk, dv back.
  PassTraffic traffic() const override {
    const index_t tokens = tokens_of(rank_), all = all_tokens();
    index_t sent = 0;
    for (const Blocks& of_rank : blocks_) sent += width_of(of_rank);
    const Blocks& mine = blocks_[static_cast<std::size_t>(rank_)];
    const auto bytes = [&](index_t n) { return comm::all_to_all_bytes(static_cast<index_t>(sizeof(T)) * n, ranks()); };
    PassTraffic sum = core_->traffic();
    sum.forward += {.context_parallel = bytes(tokens * sent + all * mine[0].size())};
    sum.backward += {.context_parallel = bytes(tokens * geometry_.query_columns() + all * width_of(mine))};
    return sum;
  }

  void forward(Device& device, const Geometry& layer, const TokenBatch& batch, const AttentionActivations<T>& act,
               const AttentionWorkspace<T>& work) override {
    tokens_to_heads(device, 3, act.qkv, act.all_qkv);
    core_->forward(device, part_of(layer), together(batch), together(act), work);
    heads_to_tokens(device, 1, act.all_out, [&](int rank, const MatrixRef<T>& message) {
      kernels::copy_matrix<T>(device, message, columns(act.out, block(rank, 0)));
    });
  }

  // Gradients of a key head that several ranks computed with are added in rank order.
  void backward(Device& device, const Geometry& layer, const TokenBatch& batch, const AttentionActivations<T>& act,
                const AttentionWorkspace<T>& work) override {
    tokens_to_heads(device, 1, work.dout, all_dout_);
    core_->backward(device, part_of(layer), together(batch), together(act), together(work));
    kernels::fill<M>(device, flat(key_value_sum_), 0.0);
    heads_to_tokens(device, 3, all_dqkv_, [&](int rank, const MatrixRef<T>& message) {
      index_t at = block(rank, 0).size();
      kernels::copy_matrix<T>(device, message.column_block(0, at), columns(work.dqkv, block(rank, 0)));
      for (const int i : {1, 2}) {
        const Range to = block(rank, i);
        kernels::accumulate_matrix<T>(
            device, message.column_block(at, to.size()),
            MatrixRef<M>(key_value_sum_).column_block(to.begin - geometry_.query_columns(), to.size()));
        at += to.size();
      }
    });
    kernels::round_matrix<T>(device, MatrixRef<M>(key_value_sum_), geometry_.key_value_of(work.dqkv));
  }

  void prepare(Device& device, const Geometry& layer, const TokenBatch& batch, const AttentionActivations<T>& act,
               const AttentionWorkspace<T>& work) override {
    core_->prepare(device, part_of(layer), together(batch), together(act), together(work));
  }

 private:
  int ranks() const { return static_cast<int>(shards_.size()); }
  index_t all_tokens() const { return sequences_ * together_.length(); }

  // What the neighbours have together, as the core sees it.
  TokenBatch together(TokenBatch batch) const {
    batch.length = together_.length();
    return batch;
  }
  static AttentionActivations<T> together(AttentionActivations<T> act) {
    act.qkv = act.all_qkv;
    act.out = act.all_out;
    return act;
  }
  AttentionWorkspace<T> together(AttentionWorkspace<T> work) const {
    work.dqkv = all_dqkv_;
    work.dout = all_dout_;
    return work;
  }

  const Range& block(int rank, int i) const {
    return blocks_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(i)];
  }
  // Columns of the first `blocks` of q, k, v.
  index_t width(int rank, int blocks) const {
    index_t columns = 0;
    for (int i = 0; i < blocks; ++i) columns += block(rank, i).size();
    return columns;
  }
  index_t tokens_of(int rank) const { return sequences_ * shards_[static_cast<std::size_t>(rank)].length(); }
  static MatrixRef<T> columns(const Matrix<T>& x, const Range& r) {
    return MatrixRef<T>(x).column_block(r.begin, r.size());
  }
  // A layer's geometry, of this rank's share of the heads.
  Geometry part_of(const Geometry& layer) const {
    Geometry part = layer;
    part.heads = part_.heads;
    return part;
  }
  // Elements per rank: counts_here_ of (tokens here, columns there), counts_there_ of (tokens there, columns here).
  void count(int blocks) {
    for (int r = 0; r < ranks(); ++r) {
      const auto i = static_cast<std::size_t>(r);
      counts_here_[i] = static_cast<std::size_t>(tokens_of(rank_) * width(r, blocks));
      counts_there_[i] = static_cast<std::size_t>(tokens_of(r) * width(rank_, blocks));
    }
  }

  // local (tokens here, q | k | v or the first of them) -> all (all tokens, the columns of this rank's heads)
  void tokens_to_heads(Device& device, int blocks, const Matrix<T>& local, const Matrix<T>& all) {
    count(blocks);
    T* message = send_.data();
    for (int r = 0; r < ranks(); ++r) {
      const MatrixRef<T> out(message, tokens_of(rank_), width(r, blocks));
      index_t at = 0;
      for (int i = 0; i < blocks; ++i) {
        kernels::copy_matrix<T>(device, columns(local, block(r, i)), out.column_block(at, block(r, i).size()));
        at += block(r, i).size();
      }
      message += out.rows * out.columns;
    }
    comm::all_to_all<T>(*group_, send_.data(), counts_here_, receive_.data(), counts_there_, device.stream());
    for_each_stretch(MatrixRef<T>(receive_.data(), all.extent(0), all.extent(1)), all,
                     [&](const MatrixRef<T>& packed, const MatrixRef<T>& in_sequence) {
                       kernels::copy_matrix<T>(device, packed, in_sequence);
                     });
  }

  // The reverse of tokens_to_heads. take(rank, message): message has the tokens here, that rank's columns.
  template <class Take>
  void heads_to_tokens(Device& device, int blocks, const Matrix<T>& all, const Take& take) {
    count(blocks);
    for_each_stretch(MatrixRef<T>(send_.data(), all.extent(0), all.extent(1)), all,
                     [&](const MatrixRef<T>& packed, const MatrixRef<T>& in_sequence) {
                       kernels::copy_matrix<T>(device, in_sequence, packed);
                     });
    comm::all_to_all<T>(*group_, send_.data(), counts_there_, receive_.data(), counts_here_, device.stream());
    T* message = receive_.data();
    for (int r = 0; r < ranks(); ++r) {
      const MatrixRef<T> in(message, tokens_of(rank_), width(r, blocks));
      take(r, in);
      message += in.rows * in.columns;
    }
  }

  // f(rows of `packed`, sorted by rank and sequence; the same rows of `all`, sorted by sequence and position).
  template <class F>
  void for_each_stretch(const MatrixRef<T>& packed, const MatrixRef<T>& all, const F& f) const {
    index_t row = 0;
    const auto add = [&](index_t sequence, const Range& held, index_t first) {
      if (held.size() == 0) return;
      f(packed.row_block(row, held.size()), all.row_block(sequence * together_.length() + first, held.size()));
      row += held.size();
    };
    for (const SequenceShard& held : shards_) {
      for (index_t s = 0; s < sequences_; ++s) {
        add(s, held.first, held.first.begin - together_.first.begin);
        add(s, held.second, together_.first.size() + held.second.begin - together_.second.begin);
      }
    }
  }

  std::unique_ptr<AttentionCore<T>> core_;  // of all tokens of the neighbours and this rank's part of the heads
  std::vector<SequenceShard> shards_;       // of each neighbour
  SequenceShard together_{};                // of all of them
  Geometry geometry_, part_;                // of the local heads; of this rank's share of them
  index_t sequences_;
  comm::Group* group_;
  int rank_;                    // in it
  std::vector<Blocks> blocks_;  // per rank: its columns of the local q | k | v
  std::vector<std::size_t> counts_here_, counts_there_;
  Vector<T> send_, receive_;
  Matrix<T> all_dout_, all_dqkv_;
  Matrix<M> key_value_sum_;  // (tokens, dk | dv)
};

}  // namespace

template <class T>
std::unique_ptr<AttentionCore<T>> make_all_to_all_attention(const ContextShard& context,
                                                            const AttentionGeometry<T>& geometry, index_t sequences,
                                                            const ContextGroups& groups, Arena& arena) {
  return std::make_unique<AllToAllAttention<T>>(context, geometry, sequences, groups, arena);
}

#define NANOTRON_INSTANTIATE(T)                                         \
  template std::unique_ptr<AttentionCore<T>> make_all_to_all_attention( \
      const ContextShard&, const AttentionGeometry<T>&, index_t, const ContextGroups&, Arena&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::nn
