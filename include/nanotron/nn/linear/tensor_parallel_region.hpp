#pragma once

// How the hidden states between blocks are stored on the t ranks of a tensor-parallel group, how the first GEMM of a
// block gets all tokens, and how the partial sums of its last GEMM are reduced:
//
//   replicated          every rank stores all tokens; partial sums are all-reduced (Shoeybi et al. 2019)
//   sequence-parallel   each rank stores ceil(tokens / t) rows; blocks all-gather the rows and reduce-scatter their
//                       partial sums (Korthikanti et al. 2022, section 4.2.2)
//
// Sequence-parallel hidden states are split into chunks of consecutive tokens, and each chunk evenly over the ranks.
// Rows [i, j) of a chunk on rank r are tokens [t i + r (j - i), t i + (r + 1) (j - i)). 8 tokens, t = 2, two chunks:
//
//   rank 0   rows 0 1 = tokens 0 1    rows 2 3 = tokens 4 5
//   rank 1   rows 0 1 = tokens 2 3    rows 2 3 = tokens 6 7
//
// A gathered chunk is multiplied while the next ones are in flight; a partial sum is reduced while the next chunk is
// multiplied (Wang et al. 2023, "Overlap Communication with Dependent Computation via Decomposition"). Chunks need not
// be equal. Outside this class only held_tokens() says which tokens a rank stores.
//
// A gather's backward is a sum and vice versa. Rows after the last token are padding: they are zero, stay zero, and no
// block reads them.

#include <memory>
#include <span>
#include <vector>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/watch/step_traffic.hpp"
#include "nanotron/deck/keys/parallel.hpp"
#include "nanotron/nn/linear/linear.hpp"
#include "nanotron/tensor/arena.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::nn {

/// A gather or a sum in flight, one request per chunk. TensorParallelRegion owns the requests.
class Pending {
 public:
  explicit Pending(std::span<comm::Request> chunks = {}) : chunks_(chunks) {}
  void wait() {
    for (comm::Request& chunk : chunks_) chunk.wait();
  }

 private:
  std::span<comm::Request> chunks_;
};

template <class T>
class PendingGather {
 public:
  PendingGather(Matrix<const T> tokens, Pending running) : tokens_(tokens), running_(running) {}
  /// (tokens, width), complete for work queued after this call.
  Matrix<const T> wait() {
    running_.wait();
    return tokens_;
  }

 private:
  Matrix<const T> tokens_;
  Pending running_;
};

/// What a block reads: this rank's rows of the hidden states, and the buffer where forward saves all gathered tokens
/// for backward.
template <class T>
struct BlockInput {
  Matrix<const T> rows{};  // (rows, width)
  Matrix<T> kept{};        // (kept_rows(), width); empty: backward gathers the rows again
};

/// Rows of the hidden states that are consecutive tokens of the micro-batch; those after its last one are padding.
struct HeldTokens {
  Range rows;
  index_t first_token;
};

/// All gathers and sums are collective over the tensor-parallel group. One gather and one sum may be in flight at a
/// time, the gather started first.
template <class T>
class TensorParallelRegion {
 public:
  virtual ~TensorParallelRegion() = default;

  /// Rows of the hidden states of a micro-batch on this rank.
  virtual index_t rows() const = 0;
  /// The rows of y (rows, width) that hold tokens: all but the padding at its end.
  virtual MatrixRef<T> token_rows(Matrix<T> y) const = 0;
  /// Whether each rank stores only a part of the tokens. Gradients of what works on these rows (the norms) are then
  /// partial sums.
  virtual bool is_sharded() const = 0;
  /// The tokens of all rows on this rank.
  virtual const std::vector<HeldTokens>& held_tokens() const = 0;
  /// The ranges of tokens that all_gather_gemm and gemm_reduce multiply one by one, in the order of the tokens.
  virtual const std::vector<Range>& chunks() const = 0;
  /// Bytes of one gather, of one start_regather, and of one sum.
  virtual comm::StepTraffic gather_traffic() const = 0;
  virtual comm::StepTraffic regather_traffic() const = 0;
  virtual comm::StepTraffic sum_traffic() const = 0;

  /// Rows of BlockInput::kept; 0: backward gathers again, or needs no gather.
  virtual index_t kept_rows() const = 0;

  /// x (rows, width) -> all tokens (tokens, width), which may be x itself. Valid until the next gather.
  Matrix<const T> gather(Device& device, Matrix<const T> x) { return start_regather(device, {x, {}}).wait(); }
  /// y (tokens, out) <- gemm(all tokens of x), chunk by chunk as they arrive. Returns all tokens: x.rows itself,
  /// x.kept, or a buffer valid until the next gather.
  virtual Matrix<const T> all_gather_gemm(Device& device, const BlockInput<T>& x, const RowGemm<T>& gemm,
                                          Matrix<T> y) = 0;
  /// All tokens of x for backward: what forward saved, or a gather that overlaps the work queued before wait().
  [[nodiscard]] virtual PendingGather<T> start_regather(Device& device, const BlockInput<T>& x) = 0;

  /// Where this rank writes its partial sum (tokens, width) before start_sum reduces it into y (rows, width).
  virtual Matrix<T> partial_sum(Matrix<T> y) = 0;
  /// y <- sum over the group of what was written to partial_sum(y). y is complete after wait(), as for gemm_reduce.
  [[nodiscard]] virtual Pending start_sum(Device& device, Matrix<T> y) = 0;
  /// The same of one of chunks(), which are started in their order. All sums are complete after wait() of the last one.
  virtual Pending start_sum_of(Device& device, index_t chunk, Matrix<T> y) = 0;
  /// y <- sum over the group of gemm(x), x (tokens, in). The sum of a chunk starts after the GEMM of that chunk.
  [[nodiscard]] virtual Pending gemm_reduce(Device& device, const RowGemm<T>& gemm, Matrix<const T> x, Matrix<T> y) = 0;
  /// Waits for `sum` and adds to y what gemm adds to whole sums, if it does; after start_sum and start_sum_of.
  Pending complete_sum(Device& device, const RowGemm<T>& gemm, Pending sum, Matrix<T> y) const;
};

struct HiddenShape {
  index_t tokens = 0;  // of a micro-batch
  index_t width = 0;   // hidden size
  int tp_size = 1;
};

/// How sequence-parallel hidden states overlap collectives with GEMMs.
struct TpOverlap {
  int chunks = 1;
  deck::GatheredInputs inputs = deck::GatheredInputs::gather_again;
};
TpOverlap tp_overlap(const deck::ParallelConfig& parallel);

/// Rows of the hidden states on each rank.
index_t hidden_rows(deck::TpMode mode, const HiddenShape& size);

/// The rows of a chunk of sequence-parallel hidden states, the same on each rank. May be empty where there are more
/// chunks than rows.
Range chunk_rows(const HiddenShape& size, const TpOverlap& overlap, int chunk);

/// Takes what it needs from the arena (planning or real). tp must outlive it. Replicated hidden states ignore overlap.
template <class T>
std::unique_ptr<TensorParallelRegion<T>> make_tensor_parallel_region(deck::TpMode mode, const HiddenShape& size,
                                                                     const TpOverlap& overlap, comm::Group& tp,
                                                                     Arena& arena);

}  // namespace nanotron::nn
