#include "nanotron/nn/mlp/tiled_mlp.hpp"

#include <algorithm>

#include "nanotron/base/error.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/nn/checks.hpp"
#include "nn/linear/rows.hpp"

namespace nanotron::nn {

template <class T>
PassTraffic TiledMlp<T>::traffic(const TensorParallelRegion<T>& region) const {
  const comm::StepTraffic both = region.gather_traffic() + region.sum_traffic();
  PassTraffic all{.backward = both, .output = both};
  for (const Range& chunk : region.chunks()) {
    for (index_t begin = chunk.begin; begin < chunk.end; begin += tile_) {
      const index_t tokens = std::min(tile_, chunk.end - begin);
      const GemmTraffic first = gate_up_.traffic(tokens), last = down_.traffic(tokens);
      all += {.backward = act_->gradient_traffic() + first.backward_input,
              .output = last.forward,
              .weights = first.backward_weight + last.backward_weight};
    }
  }
  return all;
}

template <class T>
struct TiledMlp<T>::Tile {
  Range tokens;
  Matrix<T> gate_up, hidden;
};

// function: tile, for the tiles of a chunk in their order.
template <class T>
template <class Function>
void TiledMlp<T>::for_each_tile(const Range& chunk, const FeedForwardWorkspace<T>& work,
                                const Function& function) const {
  for (index_t begin = chunk.begin; begin < chunk.end; begin += tile_) {
    const Range tokens{begin, std::min(begin + tile_, chunk.end)};
    function(Tile{tokens, first(work.tile.gate_up, tokens.size()), first(work.tile.hidden, tokens.size())});
  }
}

// The two layers with gradients of this level of the tree.
template <class T>
MlpLinears<T> TiledMlp<T>::of_level(const FeedForwardWorkspace<T>& work, int level) const {
  const Matrix<M> all = work.tile.gradients;
  M* const begin = all.data() + level * static_cast<index_t>(all.extent(1));
  const index_t first = gate_up_.gradient_elements(), second = down_.gradient_elements();
  return {gate_up_.in_order_of_calls(Vector<M>(begin, first)),
          down_.in_order_of_calls(Vector<M>(begin + first, second))};
}

// function: tile, the two layers whose gradients it adds to.
template <class T>
template <class Function>
void TiledMlp<T>::for_each_weight_tile(Device& device, const Range& chunk, const FeedForwardWorkspace<T>& work,
                                       const Function& function) const {
  const MlpLinears<T> own{gate_up_, down_};
  if (shards_.shards == 1) return for_each_tile(chunk, work, [&](const Tile& tile) { function(tile, own); });
  const auto add_to = [&](const MlpLinears<T>& sum, int from) {
    const MlpLinears<T> addend = of_level(work, from);
    sum.gate_up.add_gradients(device, addend.gate_up);
    sum.down.add_gradients(device, addend.down);
  };
  const auto add = [&](int into, int from) { add_to(of_level(work, into), from); };
  const auto elements = static_cast<index_t>(work.tile.gradients.extent(1));
  TreeStack tree;
  for (int s = 0; s < shards_.shards_on_rank; ++s) {
    kernels::fill<M>(device, Vector<M>(work.tile.gradients.data() + tree.top() * elements, elements), 0.0);
    const MlpLinears<T> of_shard = of_level(work, tree.top());
    for_each_tile(shards_.terms(0, s), work, [&](const Tile& tile) { function(tile, of_shard); });
    tree.push(add);
  }
  tree.finish(add);
  add_to(own, 0);
}

//   gate | up = n Wgu^T (+ b)      h = f(gate, up) or f(up)
template <class T>
void TiledMlp<T>::compute(Device& device, const Tile& tile, Matrix<const T> n) const {
  gate_up_.forward()(device, n, tile.gate_up);
  act_->forward(device, tile.gate_up, tile.hidden, {});
}

template <class T>
Pending TiledMlp<T>::forward_output(Device& device, const TokenBatch&, TensorParallelRegion<T>& region,
                                    const BlockInput<T>& n, const FeedForwardActivations<T>&,
                                    const FeedForwardWorkspace<T>& work, Matrix<const T> addend, Matrix<T> y) const {
  const Matrix<const T> all = region.gather(device, n.rows);
  const Matrix<T> sum = region.partial_sum(y);
  const auto held = static_cast<index_t>(all.extent(0));  // fewer than those of a chunk in generation
  Pending running;
  index_t number = 0;
  for (const Range& chunk : region.chunks()) {
    for_each_tile({chunk.begin, std::min(chunk.end, held)}, work, [&](const Tile& tile) {
      compute(device, tile, rows_of(all, tile.tokens));
      const bool adds_here = addend.extent(0) > 0;
      const RowGemm<T> gemm = down_.forward_part({}, adds_here ? rows_of(addend, tile.tokens) : addend);
      from_token(gemm, tile.tokens.begin)(device, tile.hidden, rows_of(sum, tile.tokens));
    });
    running = region.start_sum_of(device, number++, y);
  }
  return region.complete_sum(device, down_.forward_part(), running, y);
}

//   dh = dy Wd        dWd += dy^T h        dbd += sum over tokens of dy
//   dgate, dup = Activation backward of dh, overwriting gate, up
//   dWgu += [dgate | dup]^T n              db += sum over tokens of [dgate | dup]
template <class T>
void TiledMlp<T>::compute_gradient(Device& device, const Tile& tile, Matrix<const T> n, Matrix<const T> dy,
                                   const FeedForwardWorkspace<T>& work, const MlpLinears<T>* weights) const {
  const Matrix<T> dhidden = first(work.dhidden, tile.tokens.size());
  compute(device, tile, n);
  down_.backward_input()(device, dy, dhidden);
  if (weights != nullptr) weights->down.backward_weight(device, dy, tile.hidden, work.sums);
  act_->backward(device, tile.gate_up, dhidden, {}, work.sums);
  if (weights != nullptr) weights->gate_up.backward_weight(device, tile.gate_up, n, work.sums);
}

namespace {

// n of all tokens, where the gather of dy does not overwrite it.
template <class T>
Matrix<const T> gathered_input(Device& device, TensorParallelRegion<T>& region, const BlockInput<T>& n,
                               const FeedForwardWorkspace<T>& work) {
  const Matrix<const T> all = region.gather(device, n.rows);
  if (!region.is_sharded()) return all;
  kernels::copy_matrix<T>(device, all, work.tile.input);
  return work.tile.input;
}

}  // namespace

//   dn = [dgate | dup] Wgu, summed over the group
template <class T>
Pending TiledMlp<T>::backward_tiles(Device& device, TensorParallelRegion<T>& region, Matrix<const T> dy_rows,
                                    const BlockInput<T>& input, const FeedForwardWorkspace<T>& work, Matrix<T> dn,
                                    TileGradients gradients) const {
  const Matrix<const T> n = gathered_input(device, region, input, work), dy = region.gather(device, dy_rows);
  const Matrix<T> sum = region.partial_sum(dn);
  Pending running;
  index_t number = 0;
  for (const Range& chunk : region.chunks()) {
    const auto compute_tile = [&](const Tile& tile, const MlpLinears<T>* weights) {
      compute_gradient(device, tile, rows_of(n, tile.tokens), rows_of(dy, tile.tokens), work, weights);
      from_token(gate_up_.backward_input(), tile.tokens.begin)(device, tile.gate_up, rows_of(sum, tile.tokens));
    };
    if (gradients == TileGradients::all) {
      for_each_weight_tile(device, chunk, work,
                           [&](const Tile& tile, const MlpLinears<T>& weights) { compute_tile(tile, &weights); });
    } else {
      for_each_tile(chunk, work, [&](const Tile& tile) { compute_tile(tile, nullptr); });
    }
    running = region.start_sum_of(device, number++, dn);
  }
  return region.complete_sum(device, gate_up_.backward_input(), running, dn);
}

template <class T>
void TiledMlp<T>::backward_tiles_weight(Device& device, TensorParallelRegion<T>& region, Matrix<const T> dy_rows,
                                        const BlockInput<T>& input, const FeedForwardWorkspace<T>& work) const {
  const Matrix<const T> n = gathered_input(device, region, input, work), dy = region.gather(device, dy_rows);
  for (const Range& chunk : region.chunks()) {
    for_each_weight_tile(device, chunk, work, [&](const Tile& tile, const MlpLinears<T>& weights) {
      compute_gradient(device, tile, rows_of(n, tile.tokens), rows_of(dy, tile.tokens), work, &weights);
    });
  }
}

template <class T>
Pending TiledMlp<T>::backward_input(Device&, const TokenBatch&, TensorParallelRegion<T>&,
                                    const FeedForwardActivations<T>&, const FeedForwardWorkspace<T>&, Matrix<T>) const {
  NANOTRON_REQUIRE(false, "backward of tiles is backward_tiles");
  return Pending();
}

NANOTRON_INSTANTIATE_CLASS(TiledMlp)

void check_mlp_tile(const deck::Config& c, deck::Findings& f) {
  const deck::ParallelConfig& p = c.parallel;
  if (p.mlp_tile == 0 || !f.is_valid({"parallel.mlp_tile"})) return;
  const auto refuse = [&](const char* key, bool is_refused, const char* what, const char* change) {
    if (is_refused && f.is_valid({key})) f.error({"parallel.mlp_tile", key}, what, "mlp_tile = 0", change);
  };
  const bool has_scalars = activation_sums(c.model.hidden_act, Processor::cpu, 1, 1, {}) > 0;
  refuse("model.hidden_act",
         has_scalars && c.precision.reproducible == deck::Reproducible::layout && c.precision.context_shards > 1,
         "the activation has scalars, whose gradients are summed over the shards of a sequence at once",
         "or context_shards = 1");
  refuse("parallel.tp_gathered_inputs",
         p.tp != 1 && p.tp_mode == deck::TpMode::reduce_scatter && p.tp_gathered_inputs == deck::GatheredInputs::keep,
         "tp_gathered_inputs = 'keep' keeps inputs of all tokens, and tiles gather them again",
         "or tp_gathered_inputs = 'gather_again'");
}

}  // namespace nanotron::nn
