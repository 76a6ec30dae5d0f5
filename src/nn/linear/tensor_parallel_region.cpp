#include "nanotron/nn/linear/tensor_parallel_region.hpp"

#include <algorithm>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nn/linear/rows.hpp"

namespace nanotron::nn {
namespace {

template <class T>
class ReplicatedRegion final : public TensorParallelRegion<T> {
 public:
  ReplicatedRegion(const HiddenShape& size, comm::Group& tp)
      : tokens_(size.tokens),
        width_(size.width),
        chunks_({{0, size.tokens}}),
        held_({{{0, size.tokens}, 0}}),
        tp_(&tp) {}

  index_t rows() const override { return tokens_; }
  MatrixRef<T> token_rows(Matrix<T> y) const override { return y; }
  bool is_sharded() const override { return false; }
  const std::vector<HeldTokens>& held_tokens() const override { return held_; }
  const std::vector<Range>& chunks() const override { return chunks_; }
  index_t kept_rows() const override { return 0; }
  comm::StepTraffic gather_traffic() const override { return {}; }
  comm::StepTraffic regather_traffic() const override { return {}; }
  comm::StepTraffic sum_traffic() const override {
    return {.tensor_parallel = comm::all_reduce_bytes(tokens_ * width_ * static_cast<index_t>(sizeof(T)), tp_->size())};
  }

  Matrix<const T> all_gather_gemm(Device& device, const BlockInput<T>& x, const RowGemm<T>& gemm,
                                  Matrix<T> y) override {
    gemm(device, x.rows, y);
    return x.rows;
  }
  PendingGather<T> start_regather(Device&, const BlockInput<T>& x) override { return {x.rows, Pending()}; }

  Matrix<T> partial_sum(Matrix<T> y) override { return y; }
  Pending start_sum(Device& device, Matrix<T> y) override {
    sum_[0] = comm::start_all_reduce(*tp_, y.data(), elements_of(y), comm::ReduceOp::sum, device.stream());
    return Pending(sum_);
  }
  Pending start_sum_of(Device& device, index_t, Matrix<T> y) override { return start_sum(device, y); }
  Pending gemm_reduce(Device& device, const RowGemm<T>& gemm, Matrix<const T> x, Matrix<T> y) override {
    gemm(device, x, y);
    return this->complete_sum(device, gemm, start_sum(device, y), y);
  }

 private:
  index_t tokens_, width_;
  std::vector<Range> chunks_;
  std::vector<HeldTokens> held_;
  comm::Group* tp_;
  std::vector<comm::Request> sum_ = std::vector<comm::Request>(1);
};

template <class T>
class SequenceParallelRegion final : public TensorParallelRegion<T> {
 public:
  SequenceParallelRegion(const HiddenShape& size, const TpOverlap& overlap, comm::Group& tp, Arena& arena)
      : tokens_(size.tokens),
        rows_(hidden_rows(deck::TpMode::reduce_scatter, size)),
        kept_rows_(overlap.inputs == deck::GatheredInputs::keep ? rows_ * size.tp_size : 0),
        gathered_(arena.take<T>(MemoryKind::workspace, rows_ * size.tp_size, size.width)),
        partial_sum_(arena.take<T>(MemoryKind::workspace, rows_ * size.tp_size, size.width)),
        tp_(&tp) {
    for (int c = 0; c < overlap.chunks; ++c) {
      const Range rows = chunk_rows(size, overlap, c);
      if (rows.size() == 0) continue;
      const index_t begin = rows.begin * size.tp_size, end = rows.end * size.tp_size;
      chunks_.push_back({rows, {std::min(begin, tokens_), std::min(end, tokens_)}});
      held_.push_back({rows, begin + tp.rank() * rows.size()});
    }
    for (const Chunk& chunk : chunks_) token_chunks_.push_back(chunk.tokens);
    gathers_.resize(chunks_.size());
    sums_.resize(chunks_.size());
  }

  index_t rows() const override { return rows_; }
  // Only the last chunk has padding.
  MatrixRef<T> token_rows(Matrix<T> y) const override {
    const Range& last = chunks_.back().rows;
    const index_t first = last.begin * tp_->size() + tp_->rank() * last.size();  // token of this rank's first row in it
    return MatrixRef<T>(y).row_block(0, last.begin + std::clamp<index_t>(tokens_ - first, 0, last.size()));
  }
  bool is_sharded() const override { return true; }
  const std::vector<HeldTokens>& held_tokens() const override { return held_; }
  const std::vector<Range>& chunks() const override { return token_chunks_; }
  index_t kept_rows() const override { return kept_rows_; }
  comm::StepTraffic gather_traffic() const override {
    return {.tensor_parallel = comm::all_gather_bytes(bytes_of(rows_), tp_->size())};
  }
  comm::StepTraffic regather_traffic() const override {
    return kept_rows_ > 0 ? comm::StepTraffic{} : gather_traffic();
  }
  comm::StepTraffic sum_traffic() const override {
    return {.tensor_parallel = comm::reduce_scatter_bytes(bytes_of(rows_ * tp_->size()), tp_->size())};
  }

  Matrix<const T> all_gather_gemm(Device& device, const BlockInput<T>& x, const RowGemm<T>& gemm,
                                  Matrix<T> y) override {
    const Matrix<T> all = x.kept.extent(0) > 0 ? x.kept : gathered_;
    start_gathers(device, x.rows, all);
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
      gathers_[c].wait();
      gemm(device, block<const T>(all, chunks_[c].tokens), block<T>(y, chunks_[c].tokens), static_cast<index_t>(c));
    }
    return block<const T>(all, {0, tokens_});
  }
  PendingGather<T> start_regather(Device& device, const BlockInput<T>& x) override {
    if (x.kept.extent(0) > 0) return {block<const T>(x.kept, {0, tokens_}), Pending()};
    start_gathers(device, x.rows, gathered_);
    return {block<const T>(gathered_, {0, tokens_}), Pending(gathers_)};
  }

  Matrix<T> partial_sum(Matrix<T>) override { return block<T>(partial_sum_, {0, tokens_}); }
  Pending start_sum(Device& device, Matrix<T> y) override {
    for (std::size_t c = 0; c < chunks_.size(); ++c) sum_chunk(device, c, y);
    return Pending(sums_);
  }
  Pending start_sum_of(Device& device, index_t chunk, Matrix<T> y) override {
    sum_chunk(device, static_cast<std::size_t>(chunk), y);
    return Pending(sums_);
  }
  Pending gemm_reduce(Device& device, const RowGemm<T>& gemm, Matrix<const T> x, Matrix<T> y) override {
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
      from_token(gemm, chunks_[c].tokens.begin)(device, block<const T>(x, chunks_[c].tokens),
                                                block<T>(partial_sum_, chunks_[c].tokens), static_cast<index_t>(c));
      sum_chunk(device, c, y);
    }
    return this->complete_sum(device, gemm, Pending(sums_), y);
  }

 private:
  struct Chunk {
    Range rows;    // of the hidden states, the same on every rank
    Range tokens;  // of the micro-batch: rows of all ranks, without the padding
  };

  index_t bytes_of(index_t rows) const { return rows * static_cast<index_t>(gathered_.extent(1) * sizeof(T)); }

  template <class U, class View>
  static Matrix<U> block(const View& m, const Range& rows) {
    return Matrix<U>(m.data() + rows.begin * static_cast<index_t>(m.extent(1)), rows.size(), m.extent(1));
  }

  // The first element of chunk c in the gathered rows.
  T* first_of(const Matrix<T>& all, std::size_t c) const {
    return all.data() + chunks_[c].rows.begin * tp_->size() * static_cast<index_t>(all.extent(1));
  }

  void start_gathers(Device& device, Matrix<const T> x, const Matrix<T>& all) {
    check_size(x);
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
      const Matrix<const T> mine = block<const T>(x, chunks_[c].rows);
      gathers_[c] = comm::start_all_gather(*tp_, mine.data(), elements_of(mine), first_of(all, c), device.stream());
    }
  }
  void sum_chunk(Device& device, std::size_t c, const Matrix<T>& y) {
    check_size(y);
    const Matrix<T> mine = block<T>(y, chunks_[c].rows);
    sums_[c] = comm::start_reduce_scatter(*tp_, first_of(partial_sum_, c), mine.data(), elements_of(mine),
                                          comm::ReduceOp::sum, device.stream());
  }

  void check_size(const Matrix<const T>& x) const {
    NANOTRON_REQUIRE(static_cast<index_t>(x.extent(0)) == rows_ && x.extent(1) == gathered_.extent(1),
                     "{} x {} of hidden states of {} x {}", x.extent(0), x.extent(1), rows_, gathered_.extent(1));
  }

  index_t tokens_, rows_, kept_rows_;
  Matrix<T> gathered_, partial_sum_;  // (t rows, width)
  comm::Group* tp_;
  std::vector<Chunk> chunks_;
  std::vector<Range> token_chunks_;
  std::vector<HeldTokens> held_;
  std::vector<comm::Request> gathers_, sums_;  // per chunk
};

}  // namespace

template <class T>
Pending TensorParallelRegion<T>::complete_sum(Device& device, const RowGemm<T>& gemm, Pending sum, Matrix<T> y) const {
  if (gemm.gemms == nullptr || !gemm.gemms->adds_to_sum(gemm)) return sum;
  sum.wait();
  const MatrixRef<T> rows = token_rows(y);
  for (const HeldTokens& held : held_tokens()) {
    const index_t count = std::min(held.rows.end, rows.rows) - held.rows.begin;
    if (count > 0)
      gemm.gemms->add_to_sum(device, gemm, {held.first_token, held.first_token + count},
                             rows.row_block(held.rows.begin, count));
  }
  return Pending();
}

index_t hidden_rows(deck::TpMode mode, const HiddenShape& size) {
  return mode == deck::TpMode::all_reduce ? size.tokens : (size.tokens + size.tp_size - 1) / size.tp_size;
}

TpOverlap tp_overlap(const deck::ParallelConfig& p) {
  return {.chunks = static_cast<int>(p.tp_overlap_chunks), .inputs = p.tp_gathered_inputs};
}

Range chunk_rows(const HiddenShape& size, const TpOverlap& overlap, int chunk) {
  return shard_range(hidden_rows(deck::TpMode::reduce_scatter, size), overlap.chunks, chunk);
}

template <class T>
std::unique_ptr<TensorParallelRegion<T>> make_tensor_parallel_region(deck::TpMode mode, const HiddenShape& size,
                                                                     const TpOverlap& overlap, comm::Group& tp,
                                                                     Arena& arena) {
  if (mode == deck::TpMode::reduce_scatter && size.tp_size > 1) {
    return std::make_unique<SequenceParallelRegion<T>>(size, overlap, tp, arena);
  }
  return std::make_unique<ReplicatedRegion<T>>(size, tp);
}

#define NANOTRON_INSTANTIATE(T)                                                                                 \
  template Pending TensorParallelRegion<T>::complete_sum(Device&, const RowGemm<T>&, Pending, Matrix<T>) const; \
  template std::unique_ptr<TensorParallelRegion<T>> make_tensor_parallel_region(                                \
      deck::TpMode, const HiddenShape&, const TpOverlap&, comm::Group&, Arena&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::nn
