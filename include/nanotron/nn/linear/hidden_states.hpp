#pragma once

// How the hidden states between the blocks lies on the ranks of a tensor-parallel group, how a block's first product
// gets all tokens, and how the ranks' parts of a block's last one become one sum in the hidden states:
//
//   whole   every rank holds all tokens; sums are all-reduced (Shoeybi et al. 2019)
//   split   each rank holds n = ceil(tokens / size) rows; blocks gather all rows, and their sums are reduce-scattered
//           (sequence parallel, Korthikanti et al. 2022, section 4.2.2)
//
// The tokens of a sharded hidden states are cut into chunks, and each chunk into as many rows for every rank: with rank
// r's rows [b, e) of a chunk are tokens [size b + r (e - b), size b + (r + 1) (e - b)). So a chunk that has been
// gathered is a block of consecutive tokens: it is multiplied while the next ones travel, and a product is summed while
// the next chunk is multiplied (Wang et al. 2023, "Overlap Communication with Dependent Computation via
// Decomposition"). Chunks need not be equal. Nothing outside of the hidden states depends on which tokens a rank holds.
//
// Gather and sum are each other's backward. Rows of the sharded hidden states behind the last token are padding: they
// are zero, stay so, and no block sees them.

#include <memory>
#include <span>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/step_traffic.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/nn/linear/linear.hpp"
#include "nanotron/tensor/arena.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::nn {

/// The chunks of a gather or a sum that runs behind what follows. The requests are the hidden states's.
class Running {
 public:
  explicit Running(std::span<comm::Request> chunks = {}) : chunks_(chunks) {}
  void wait() {
    for (comm::Request& chunk : chunks_) chunk.wait();
  }

 private:
  std::span<comm::Request> chunks_;
};

/// All tokens, on their way.
template <class T>
class Gathering {
 public:
  Gathering(Matrix<const T> tokens, Running running) : tokens_(tokens), running_(running) {}
  /// (tokens, width), there for the work queued next.
  Matrix<const T> wait() {
    running_.wait();
    return tokens_;
  }

 private:
  Matrix<const T> tokens_;
  Running running_;
};

/// What a block reads: its rows of the hidden states, and where forward keeps all tokens of it for backward.
template <class T>
struct BlockInput {
  Matrix<const T> rows{};  // (rows, width)
  Matrix<T> kept{};        // (kept_rows(), width); empty: backward gathers the rows again
};

/// Every function is collective over the tensor-parallel group. One gather and one sum may run at a time, the gather
/// having been started first.
template <class T>
class HiddenStates {
 public:
  virtual ~HiddenStates() = default;

  /// Of the hidden states on this rank, for a micro-batch.
  virtual index_t rows() const = 0;
  /// Of y (rows, width), or its first rows, those that hold tokens.
  virtual MatrixRef<T> token_rows(Matrix<T> y) const = 0;
  /// Whether each rank sees a part of the tokens only, so that gradients of what works on the hidden states (the
  /// norms) are partial sums.
  virtual bool is_sharded() const = 0;
  /// Bytes of one gather, of one for backward of what forward gathered, and of one sum.
  virtual comm::StepTraffic gather_traffic() const = 0;
  virtual comm::StepTraffic gather_again_traffic() const = 0;
  virtual comm::StepTraffic sum_traffic() const = 0;

  /// Of BlockInput::kept; 0: backward gathers again, or needs no gather.
  virtual index_t kept_rows() const = 0;

  /// Stream (rows, width) -> all tokens (tokens, width); may be x itself. Valid until the next gather.
  Matrix<const T> gather(Device& device, Matrix<const T> x) { return start_gather_again(device, {x, {}}).wait(); }
  /// y (tokens, out) <- product of all tokens of x, chunk by chunk as they arrive. Returns them: x itself, x.kept or,
  /// where that is empty, valid until the next gather.
  virtual Matrix<const T> gather_multiply(Device& device, const BlockInput<T>& x, const RowGemm<T>& product,
                                          Matrix<T> y) = 0;
  /// The tokens of x for backward: what forward kept, or gathered again meanwhile.
  [[nodiscard]] virtual Gathering<T> start_gather_again(Device& device, const BlockInput<T>& x) = 0;

  /// Where this rank writes its part (tokens, width) of the sum that is to end in y (rows, width).
  virtual Matrix<T> addend(Matrix<T> y) = 0;
  /// y <- sum over the group of what was written to addend(y). y may be read after wait(); so for the next.
  [[nodiscard]] virtual Running start_sum(Device& device, Matrix<T> y) = 0;
  /// y <- sum over the group of the products of their x (tokens, in), each chunk's started behind its product.
  [[nodiscard]] virtual Running multiply_sum(Device& device, const RowGemm<T>& product, Matrix<const T> x,
                                             Matrix<T> y) = 0;
};

struct HiddenShape {
  index_t tokens = 0;  // of a micro-batch
  index_t width = 0;   // hidden size
  int tp_size = 1;
};

/// Of a sharded hidden states.
struct TpOverlap {
  int chunks = 1;
  deck::GatheredInputs inputs = deck::GatheredInputs::gather_again;
};
TpOverlap tp_overlap(const deck::ParallelConfig& parallel);

/// Rows of the hidden states on each rank.
index_t hidden_rows(deck::TpMode mode, const HiddenShape& size);

/// The c-th chunk of a sharded hidden states: rows of each rank. Empty where there are more chunks than rows.
Range chunk_rows(const HiddenShape& size, const TpOverlap& overlap, int chunk);

/// Takes what it needs from the arena (planning or real). tp must outlive it. overlap means nothing to a replicated
/// hidden states.
template <class T>
std::unique_ptr<HiddenStates<T>> make_hidden_states(deck::TpMode mode, const HiddenShape& size,
                                                    const TpOverlap& overlap, comm::Group& tp, Arena& arena);

}  // namespace nanotron::nn
