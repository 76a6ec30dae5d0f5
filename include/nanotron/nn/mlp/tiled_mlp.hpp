#pragma once

// The dense feed-forward block (nn/mlp/mlp.hpp) in tiles of tokens (parallel%mlp_tile), as in Arctic Long Sequence
// Training (Bekman et al. 2025) and Liger Kernel: the activations between its GEMMs exist for one tile only. Of forward
// only the input n remains; backward computes a tile's gate | up and h again:
//
//   forward    for each tile t:   gate_t | up_t = n_t Wgu^T (+ b)     h_t = f(gate_t, up_t)     y_t = h_t Wd^T
//   backward   for each tile t:   gate_t | up_t, h_t as in forward    dh_t = dy_t Wd            dWd += dy_t^T h_t
//                                 dgate_t, dup_t                      dn_t = [dgate_t | dup_t] Wgu
//                                 dWgu += [dgate_t | dup_t]^T n_t
//
// Weight gradients are sums over tiles in their order; with one tile they have the bits of nn::Mlp. A tile lies within
// one chunk of TensorParallelRegion, whose sum runs beside the next tiles. Where the shards of a sequence are fixed
// (tensor/sum_order.hpp) tiles of weight gradients lie within a shard, and the sums of shards are added in the tree.
// Where weight gradients come later (zero bubble), gate | up and dh are computed once more for them.

#include "nanotron/nn/mlp/activation.hpp"
#include "nanotron/nn/mlp/feed_forward.hpp"

namespace nanotron::nn {

template <class T>
class TiledMlp final : public FeedForward<T> {
 public:
  using M = master_t<T>;
  /// shards: of the tokens here; one or none: tiles are added to the gradients.
  TiledMlp(const MlpLinears<T>& linears, std::shared_ptr<const Activation<T>> act, index_t tile, const SumOrder& shards)
      : gate_up_(linears.gate_up.in_order_of_calls()),
        down_(linears.down.in_order_of_calls()),
        act_(std::move(act)),
        tile_(tile),
        shards_(shards) {}

  void forward_to_last_gemm(Device&, const TokenBatch&, TensorParallelRegion<T>&, const BlockInput<T>&,
                            const FeedForwardActivations<T>&, const FeedForwardWorkspace<T>&) const override {}
  bool adds() const override { return down_.bias().extent(0) == 0; }
  [[nodiscard]] Pending forward_output(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                                       const BlockInput<T>& n, const FeedForwardActivations<T>& act,
                                       const FeedForwardWorkspace<T>& work, Matrix<const T> addend,
                                       Matrix<T> y) const override;
  PassTraffic traffic(const TensorParallelRegion<T>& region) const override;
  void add_output_bias(Device& device, const TensorParallelRegion<T>& region, Matrix<T> y) const override {
    down_.add_bias(device, region.token_rows(y));
  }
  void compute_hidden(Device&, const FeedForwardActivations<T>&) const override {}

  bool is_in_tiles() const override { return true; }
  [[nodiscard]] Pending backward_tiles(Device& device, TensorParallelRegion<T>& region, Matrix<const T> dy,
                                       const BlockInput<T>& n, const FeedForwardWorkspace<T>& work, Matrix<T> dn,
                                       TileGradients gradients) const override;
  void backward_tiles_weight(Device& device, TensorParallelRegion<T>& region, Matrix<const T> dy,
                             const BlockInput<T>& n, const FeedForwardWorkspace<T>& work) const override;

  // backward_tiles does it all.
  Matrix<const T> backward_inside(Device&, TensorParallelRegion<T>&, Matrix<const T> dy,
                                  const FeedForwardActivations<T>&, const FeedForwardWorkspace<T>&) const override {
    return dy;
  }
  [[nodiscard]] Pending backward_input(Device&, const TokenBatch&, TensorParallelRegion<T>&,
                                       const FeedForwardActivations<T>&, const FeedForwardWorkspace<T>&,
                                       Matrix<T>) const override;
  void backward_output_weight(Device&, Matrix<const T>, const FeedForwardActivations<T>&,
                              const FeedForwardWorkspace<T>&) const override {}
  void backward_input_weight(Device&, Matrix<const T>, const FeedForwardActivations<T>&,
                             const FeedForwardWorkspace<T>&) const override {}

 private:
  struct Tile;
  template <class Function>
  void for_each_tile(const Range& chunk, const FeedForwardWorkspace<T>& work, const Function& function) const;
  template <class Function>
  void for_each_weight_tile(Device& device, const Range& chunk, const FeedForwardWorkspace<T>& work,
                            const Function& function) const;
  MlpLinears<T> of_level(const FeedForwardWorkspace<T>& work, int level) const;
  void compute(Device& device, const Tile& tile, Matrix<const T> n) const;
  void compute_gradient(Device& device, const Tile& tile, Matrix<const T> n, Matrix<const T> dy,
                        const FeedForwardWorkspace<T>& work, const MlpLinears<T>* weights) const;

  Linear<T> gate_up_;
  Linear<T> down_;
  std::shared_ptr<const Activation<T>> act_;
  index_t tile_;
  SumOrder shards_;
};

}  // namespace nanotron::nn
