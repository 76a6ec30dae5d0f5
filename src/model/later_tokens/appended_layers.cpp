#include "appended_layers.hpp"

#include "model/layers/transformer_parts.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/gemm/gemm.hpp"

namespace nanotron::model {
namespace {

// For this many columns of the embedding and, besides, elements of a bias.
template <class T>
nn::ShardGradients<T> take_shards(const TransformerSetup& setup, const ParameterTable& table, index_t bias,
                                  Arena& arena) {
  const SumOrder tokens = detail::orders_of(setup).sequence;
  if (setup.context_shards <= 1 || tokens.shards_on_rank == 1) return {};
  const index_t elements = table.vocabulary.size() * setup.model.hidden_size + bias;
  return {tokens, arena.take<master_t<T>>(MemoryKind::workspace, tokens.shards_on_rank, elements)};
}

}  // namespace

template <class T>
AppendedLayers<T>::AppendedLayers(const TransformerSetup& setup, const ParameterTable& table,
                                  const nn::ParameterBuffers<T>& buffers, const LocalSizes& s,
                                  nn::TensorParallelRegion<T>& region, Arena& arena)
    : lookup_(make_token_lookup(setup, table, buffers)),
      region_(&region),
      token_order_(detail::orders_of(setup).hidden_rows),
      tokens_(s.tokens),
      hidden_(s.hidden),
      auxiliary_(arena.take<double>(MemoryKind::workspace, setup.objective.has_auxiliary() ? s.tokens : 0)),
      is_tied_(table.is_tied),
      head_gradients_(take_shards<T>(setup, table, detail::biased_logits(table), arena)) {
  if (!is_tied_) embedding_gradients_ = take_shards<T>(setup, table, 0, arena);
  constexpr auto kept = MemoryKind::activations;
  const kernels::RowSegments segments = detail::orders_of(setup).tokens;
  const std::string prefix = "model/layers/";
  for (index_t l = 0; l < table.appended_layers; ++l) {
    const auto norm = [&](const char* name) {
      return detail::make_norm(setup.model, table, buffers, prefix + name, l, segments);
    };
    const auto hidden = [&] { return arena.take<T>(kept, s.hidden_rows, s.hidden); };
    const auto statistics = [&] { return arena.take<M>(kept, s.hidden_rows * s.norm.statistics); };
    const nn::ParameterSpec& spec = table[prefix + "eh_proj/weight"];
    Layer& layer = layers_.emplace_back();
    layer.input_norm = norm("enorm/");
    layer.hidden_norm = norm("hnorm/");
    layer.output_norm = norm("shared_head/norm/");
    layer.projection = detail::linear_weights(table, buffers, spec, l, s.hidden);
    layer.embedded = hidden();
    layer.normed = hidden();
    layer.joined = arena.take<T>(kept, s.hidden_rows, 2 * s.hidden);
    layer.input_statistics = statistics();
    layer.hidden_statistics = statistics();
    layer.output_statistics = statistics();
  }
  for (index_t d = 0; d <= size(); ++d)
    gradients_.push_back(arena.take<T>(MemoryKind::workspace, s.hidden_rows, s.hidden));
  rows_ = region.token_rows(gradients_.front()).rows;
}

template <class T>
void AppendedLayers<T>::embed(Device& device) const {
  head_gradients_.clear(device);
  embedding_gradients_.clear(device);
  for (index_t d = 1; d <= size(); ++d) {
    const Matrix<T> e = at(d).embedded;
    lookup_.forward(device, of_depth(later_.inputs, d), region_->partial_sum(e));
    region_->start_sum(device, e).wait();
  }
}

template <class T>
void AppendedLayers<T>::join(Device& device, index_t depth, Matrix<T> n, Matrix<T> work, Matrix<T> x) const {
  const Layer& layer = at(depth);
  const MatrixRef<T> joined(layer.joined);
  layer.input_norm->forward(device, {layer.embedded}, work, layer.input_statistics, {});
  kernels::copy_matrix<T>(device, MatrixRef<const T>(work), joined.column_block(0, hidden_));
  layer.hidden_norm->forward(device, {n}, work, layer.hidden_statistics, {});
  kernels::copy_matrix<T>(device, MatrixRef<const T>(work), joined.column_block(hidden_, hidden_));
  kernels::gemm<T, T>(device, kernels::Op::none, kernels::Op::transpose, 1.0, token_rows(layer.joined),
                      layer.projection.weight, 0.0, token_rows(x));
}

template <class T>
void AppendedLayers<T>::normalise(Device& device, index_t depth, Matrix<T> y) const {
  at(depth).output_norm->forward(device, {y}, at(depth).normed, at(depth).output_statistics, {});
}

template <class T>
void AppendedLayers<T>::normalise_backward(Device& device, index_t depth, Matrix<const T> y, Matrix<T> dx,
                                           Vector<M> sums) const {
  kernels::fill<T>(device, flat(dx), 0.0);
  at(depth).output_norm->backward(device, gradient(depth), y, at(depth).output_statistics, dx, sums);
}

//   dW += dx^T [norm(e) | norm(n)]      d norm(e) = dx W_e      d norm(n) = dx W_n      W = [W_e | W_n]
template <class T>
void AppendedLayers<T>::join_backward(Device& device, index_t depth, Matrix<const T> n, Matrix<const T> dx,
                                      Matrix<T> work, Matrix<T> de, Vector<M> sums) const {
  const Layer& layer = at(depth);
  const auto multiply = [&](index_t first_column) {
    kernels::gemm<T, T>(device, kernels::Op::none, kernels::Op::none, 1.0, token_rows(dx),
                        MatrixRef<const T>(layer.projection.weight).column_block(first_column, hidden_), 0.0,
                        token_rows(work));
  };
  kernels::gemm<T, M>(device, kernels::Op::transpose, kernels::Op::none, 1.0, token_rows(dx), token_rows(layer.joined),
                      1.0, MatrixRef<M>(layer.projection.gradient), token_order_);
  multiply(0);
  kernels::fill<T>(device, flat(de), 0.0);
  layer.input_norm->backward(device, work, layer.embedded, layer.input_statistics, de, sums);
  multiply(hidden_);
  layer.hidden_norm->backward(device, work, n, layer.hidden_statistics, gradient(depth - 1), sums);
}

template <class T>
void AppendedLayers<T>::embed_backward(Device& device, index_t depth, Matrix<T> de) const {
  lookup_.backward(device, of_depth(later_.inputs, depth), region_->gather(device, de),
                   is_tied_ ? head_gradients_ : embedding_gradients_);
}

NANOTRON_INSTANTIATE_CLASS(AppendedLayers)

}  // namespace nanotron::model
