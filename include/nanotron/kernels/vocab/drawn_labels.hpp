#pragma once

// Labels drawn from the softmax of logits l, by the Gumbel-max trick (Gumbel 1954; Maddison et al. 2014):
//
//   label = argmax_j l_j - log(-log(u_j))        u_j uniform in (0, 1): P(label = j) = softmax(l)_j
//
// u_j is a pure function of the seed, the number of the sample in training, the position and j: the same on any grid.
// The vocabulary is sharded over ranks, which take the maximum of `score` between the first two calls and that of
// `candidate` between the last two. Of equal scores the smallest j is drawn. M = master_t<T> counts to 2^24.

#include "nanotron/kernels/dropout/random_mask.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

struct LabelDraw {
  std::uint64_t seed = 0;
  SampleNumbers samples{};  // of the micro-batch
};

/// Of each row of logits (rows, this rank's vocabulary from vocab_begin on): score (rows) <- its largest score,
/// candidate (rows) <- -j of it. tokens: which tokens of the micro-batch the rows are.
template <class T>
void draw_of_shard(Device& device, const LabelDraw& draw, const TokenRows& tokens, MatrixRef<const T> logits,
                   index_t vocab_begin, Vector<master_t<T>> score, Vector<master_t<T>> candidate);

/// Where a row's largest score of all ranks (score) is not own, its candidate is none.
template <class M>
void withdraw_candidates(Device& device, Vector<const M> own, Vector<const M> score, Vector<M> candidate);

/// labels (rows): negative ones stay, others <- what was drawn.
template <class M>
void write_labels(Device& device, Vector<const M> candidate, Vector<std::int32_t> labels);

}  // namespace nanotron::kernels
