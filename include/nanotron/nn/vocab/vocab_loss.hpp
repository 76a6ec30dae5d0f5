#pragma once

// Output head and cross-entropy, fused; the vocabulary is sharded over the tensor-parallel group. Tokens are processed
// in chunks: compute the logits of a chunk, overwrite them with their gradient, use it, discard it. The logits of all
// tokens never exist at once, and there is no second copy.
//
//   l = m n W^T + b, then c tanh(l / c) with a cap c      loss_t = lse - l_target,  lse = log(sum_j exp(l_j))
//   dl = scale (softmax(l) - onehot(target)), see kernels/vocab/cross_entropy.hpp for z loss and cap
//   dn = m dl W, a partial sum over the group      dW += m dl^T n      db += sum over tokens of dl

#include <cstdint>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/watch/step_traffic.hpp"
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/keys/model.hpp"
#include "nanotron/kernels/vocab/cross_entropy.hpp"
#include "nanotron/kernels/vocab/drawn_labels.hpp"
#include "nanotron/nn/linear/linear.hpp"
#include "nanotron/nn/vocab/shard_gradients.hpp"
#include "nanotron/tensor/arena.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::nn {

/// Memory of one chunk of tokens.
template <class T>
struct LossWorkspace {
  using M = master_t<T>;
  MatrixRef<T> logits;       // (chunk, local vocabulary); on a GPU rows begin at multiples of 128 bytes
  Vector<M> max;             // (chunk)
  Vector<M> own;             // (2 chunk), on a GPU: of this rank's logits (kernels/vocab/cross_entropy.hpp)
  Vector<M> sum_and_target;  // (2 chunk): summed over the group in one message
  Vector<M> bias_sums;       // see kernels::bias_backward; empty without a bias

  /// chunk_width: logits per token by which the chunk length is chosen (64 MiB, at least 128 tokens; on a GPU 8192
  /// tokens); 0: one chunk. bias_segments: of a sum over the tokens; 0: the head has no bias.
  LossWorkspace(Arena& arena, index_t tokens, index_t local_vocabulary, index_t chunk_width, index_t bias_segments = 0);
  index_t chunk() const { return logits.rows; }
};

/// What training minimises per token: loss + z_coefficient lse^2; or, of_sequences, a function of the sums of losses
/// over parts of a sequence.
struct Objective {
  double z_coefficient = 0.0;
  bool of_sequences = false;

  bool has_auxiliary() const { return z_coefficient > 0.0; }
};
Objective objective_of(const deck::Config& config);
/// Refuses a term of tokens beside a loss of sequences.
void check_objective(const deck::Config& config, deck::Findings& findings);

/// Weights of tokens in the gradient, which follow from the losses of all tokens of a micro-batch.
class TokenWeights {
 public:
  virtual ~TokenWeights() = default;
  /// losses (tokens): of each token. Returns d(what training minimises)/d(loss) of each, valid until the next call.
  /// Collective over the context-parallel group.
  virtual Vector<const double> of(Device& device, Vector<const double> losses) const = 0;
  /// After that: losses <- shares of what training minimises, which add up to it over tokens and ranks.
  virtual void replace(Device& device, Vector<double> losses) const = 0;
};

/// What follows the GEMM of the logits.
struct LogitRule {
  double multiplier = 1.0;  // m
  double cap = 0.0;         // c; 0: none
  Objective objective{};
};
LogitRule logit_rule(const deck::ModelConfig& model, const Objective& objective);

/// Targets (tokens) that are not negative are overwritten with labels drawn from the model, and the loss alone is
/// minimised; empty: nothing is drawn.
struct DrawnTargets {
  Vector<std::int32_t> targets{};
  SequenceShard shard{};  // of each sequence
  kernels::LabelDraw draw{};
};

/// Per token, overwritten: the loss; and with Objective::has_auxiliary lse^2, else empty. weights: with
/// Objective::of_sequences, else null.
struct LossRows {
  LossRows(Vector<double> losses, Vector<double> of_auxiliary = {}, const TokenWeights* token_weights = nullptr)
      : loss(losses), auxiliary(of_auxiliary), weights(token_weights) {}
  Vector<double> loss, auxiliary;
  const TokenWeights* weights;
  DrawnTargets drawn{};  // the targets of the loss
};

template <class T>
class VocabLoss {
 public:
  using M = master_t<T>;

  /// orders.out is also the order of the softmax's sum, where GEMMs have a fixed one (GemmMode).
  VocabLoss(Range vocabulary, const LinearWeights<T>& head, comm::Group& tp, const LinearOrders& orders = {},
            const LogitRule& rule = {})
      : vocabulary_(vocabulary), head_(head), tp_(&tp), orders_(orders), rule_(rule) {}

  /// For this many tokens: all-reduces of the maximum logit, and of the sum of exponentials with the target's logit;
  /// with weights in each of two passes.
  comm::StepTraffic traffic(index_t tokens) const {
    const index_t passes = rule_.objective.of_sequences ? 2 : 1;
    return {.tensor_parallel =
                comm::all_reduce_bytes(passes * 3 * tokens * static_cast<index_t>(sizeof(M)), tp_->size())};
  }

  /// n (tokens, hidden), targets (tokens; negative: ignored) -> losses (tokens), overwritten, the same on
  /// every rank of the group. Collective over the group, as is forward_backward.
  void forward(Device& device, Matrix<const T> n, Vector<const std::int32_t> targets, const LossWorkspace<T>& work,
               Vector<double> losses) const;

  /// Also the gradients of scale * (sum of what training minimises): this rank's partial sum of dn (tokens, hidden),
  /// overwritten; the gradients of the head, accumulated. With weights the logits are computed twice: for the losses of
  /// all tokens, then for their gradients. apart: where the gradients of the head go instead, if it is not empty.
  void forward_backward(Device& device, Matrix<const T> n, Vector<const std::int32_t> targets, double scale,
                        const LossWorkspace<T>& work, const LossRows& rows, Matrix<T> dn,
                        const ShardGradients<T>& apart = {}) const;
  /// The gradients of the head += those kept apart.
  void add_shards(Device& device, const ShardGradients<T>& apart) const {
    apart.add_to(device, head_.gradient, head_.bias_gradient);
  }

  /// n (tokens, hidden) -> logits (tokens, local vocabulary), overwritten. For sampling. No communication.
  void logits(Device& device, Matrix<const T> n, MatrixRef<T> logits) const;

 private:
  struct Chunk;
  void loss_of_shards(Device& device, const Chunk& chunk) const;
  void draw_targets(Device& device, const Chunk& chunk, index_t begin, const DrawnTargets& drawn) const;
  kernels::LossGradient gradient_of(double scale, const LossRows& rows, Vector<const double> weights) const;

  Range vocabulary_;
  LinearWeights<T> head_;
  comm::Group* tp_;
  LinearOrders orders_;
  LogitRule rule_;
};

}  // namespace nanotron::nn
