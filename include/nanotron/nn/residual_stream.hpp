#pragma once

// How the residual stream between the blocks lies on the ranks of a tensor-parallel group, how a block gets
// all tokens, and how the ranks' parts of a block's output become one sum in the stream:
//
//   whole   every rank holds all tokens; sums are all-reduced (Shoeybi et al. 2019)
//   split   rank t holds the rows [t n, t n + n), n = ceil(tokens / size); blocks gather all rows, and their
//           sums are reduce-scattered (sequence parallel, Korthikanti et al. 2022, section 4.2.2)
//
// Gather and sum are each other's backward. Rows of the split stream behind the last token are padding: they
// are zero, stay so, and no block sees them.

#include <memory>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/tensor/arena.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::nn {

/// Every function is collective over the tensor-parallel group.
template <class T>
class ResidualStream {
 public:
  virtual ~ResidualStream() = default;

  /// Of the stream on this rank, for a micro-batch.
  virtual index_t rows() const = 0;
  /// Whether each rank sees a part of the tokens only, so that gradients of what works on the stream (the
  /// norms) are partial sums.
  virtual bool is_split() const = 0;

  /// Stream (rows, width) -> all tokens (tokens, width); may be x itself. Valid until the next gather.
  virtual Matrix<const T> gather(Device& device, Matrix<const T> x) = 0;

  /// Where this rank writes its part (tokens, width) of the sum that is to end in y (rows, width).
  virtual Matrix<T> addend(Matrix<T> y) = 0;
  /// y <- sum over the group of what was written to addend(y). y may be read after the request's wait().
  [[nodiscard]] virtual comm::Request start_sum(Device& device, Matrix<T> y) = 0;
};

struct StreamSize {
  index_t tokens = 0;  // of a micro-batch
  index_t width = 0;   // hidden size
  int tp_size = 1;
};

/// Rows of the stream on each rank.
index_t stream_rows(deck::TpMode mode, const StreamSize& size);

/// Takes what it needs from the arena (planning or real). tp must outlive it.
template <class T>
std::unique_ptr<ResidualStream<T>> make_residual_stream(deck::TpMode mode, const StreamSize& size,
                                                        comm::Group& tp, Arena& arena);

}  // namespace nanotron::nn
