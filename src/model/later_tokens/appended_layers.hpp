#pragma once

// What layers that predict later tokens have besides a decoder layer, of one rank: norms, projection and activations.
// Depth d = 0 is the model without them, depth d >= 1 the d-th appended layer. Private to the model layer.

#include <memory>
#include <vector>

#include "nanotron/model/later_tokens/later_tokens.hpp"
#include "nanotron/model/layers/transformer.hpp"
#include "nanotron/nn/linear/linear.hpp"
#include "nanotron/nn/vocab/shard_gradients.hpp"

namespace nanotron::model {

template <class T>
class AppendedLayers {
 public:
  using M = master_t<T>;

  /// Takes its memory from the arena (planning or real). region must outlive it. For training.
  AppendedLayers(const TransformerSetup& setup, const ParameterTable& table, const nn::ParameterBuffers<T>& buffers,
                 const LocalSizes& sizes, nn::TensorParallelRegion<T>& region, Arena& arena);

  index_t size() const { return static_cast<index_t>(layers_.size()); }
  /// Of the micro-batch whose loss follows.
  void set(const LaterTokens& tokens) { later_ = tokens; }
  double weight() const { return later_.weight; }
  Vector<const std::int32_t> targets(index_t depth) const { return of_depth(later_.targets, depth); }
  nn::LossRows rows(index_t depth) const { return {of_depth(later_.losses, depth), auxiliary_}; }

  /// h^d (hidden_rows, h) of d >= 1, and the gradients of all h^d.
  Matrix<T> normed(index_t depth) const { return at(depth).normed; }
  Matrix<T> gradient(index_t depth) const { return gradients_[static_cast<std::size_t>(depth)]; }

  // In the order of a step. n, y, x, dx, e: (hidden_rows, h). work, sums: shared memory, overwritten; see Workspace.

  /// Where the losses of all depths add the head's gradients; the embedding's follow there if the two are tied.
  const nn::ShardGradients<T>& head_gradients() const { return head_gradients_; }
  bool is_tied() const { return is_tied_; }

  /// Looks up the inputs of all depths, and clears head_gradients. Collective over the tensor-parallel group.
  void embed(Device& device) const;
  /// n: h^(d - 1) -> x, overwritten.
  void join(Device& device, index_t depth, Matrix<T> n, Matrix<T> work, Matrix<T> x) const;
  /// y: output of the layer -> h^d.
  void normalise(Device& device, index_t depth, Matrix<T> y) const;

  /// gradient(depth) -> dx, gradient of y, overwritten.
  void normalise_backward(Device& device, index_t depth, Matrix<const T> y, Matrix<T> dx, Vector<M> sums) const;
  /// dx: gradient of x -> de, that of the embedding, overwritten; added to gradient(depth - 1).
  void join_backward(Device& device, index_t depth, Matrix<const T> n, Matrix<const T> dx, Matrix<T> work, Matrix<T> de,
                     Vector<M> sums) const;
  /// Accumulates the gradient of the token embedding. Collective as embed.
  void embed_backward(Device& device, index_t depth, Matrix<T> de) const;
  /// After that of all depths, of an embedding that is not tied.
  void add_embedding_shards(Device& device) const { lookup_.add_shards(device, embedding_gradients_); }

 private:
  struct Layer {
    std::unique_ptr<const nn::Norm<T>> input_norm, hidden_norm, output_norm;
    nn::LinearWeights<T> projection;
    Matrix<T> embedded, normed;  // E t; h^d
    Matrix<T> joined;            // (hidden_rows, 2h)
    Vector<M> input_statistics, hidden_statistics, output_statistics;
  };
  const Layer& at(index_t depth) const { return layers_[static_cast<std::size_t>(depth - 1)]; }
  template <class U>
  Vector<U> of_depth(const Vector<U>& all, index_t depth) const {
    return Vector<U>(all.data() + (depth - 1) * tokens_, tokens_);
  }
  // The rows that hold tokens.
  template <class U>
  MatrixRef<U> token_rows(const Matrix<U>& m) const {
    return MatrixRef<U>(m).row_block(0, rows_);
  }

  nn::VocabEmbedding<T> lookup_;
  nn::TensorParallelRegion<T>* region_;
  SumOrder token_order_;
  index_t tokens_, hidden_, rows_;
  std::vector<Layer> layers_;
  std::vector<Matrix<T>> gradients_;
  Vector<double> auxiliary_;  // where the head writes what the metrics do not say
  bool is_tied_;
  nn::ShardGradients<T> head_gradients_, embedding_gradients_;
  LaterTokens later_;
};

}  // namespace nanotron::model
