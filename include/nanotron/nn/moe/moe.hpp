#pragma once

// A mixture of experts (Shazeer et al. 2017; Jiang et al. 2024): each token goes to top_k of E gated networks and to a
// shared one where there is one, with a gate on its output (Qwen2-MoE) or without (DeepSeek-V3). The width of each is
// sharded over tp; whole experts are distributed over ep (Lepikhin et al. 2021; Rajbhandari et al. 2022), which may
// span tp: its ranks then send a slice of the tokens each. With c_j and w_j of kernels/moe/routing.hpp,
//
//   l | s = n [Wr | wg]^T (+ br)        h_j = w_j silu(gate) up of expert c_j
//   h = sigmoid(s) silu(gate) up, or silu(gate) up, of the shared expert
//   y = h Wd^T + sum_j h_j Wd_cj^T, summed over the tensor-parallel group
//
// The weights apply before the down projection: dw_j is then a sum over h_j only, and the experts' output is not saved.
// The router reads all of n on every rank of the tensor-parallel group, so all make the same assignments. When partial
// sums are reduced over that group: nn/moe/expert_sums.hpp.
//
// The router's own losses, added to the training loss per layer. Their gradients enter dl on one tensor-parallel rank
// where dl is a partial sum, on every rank where each has the whole dl:
//
//   balance   alpha sum over sequences of (S / T) E sum_e f_e P_e   f_e: share of the sequence's assignments
//             P_e: mean p_e
//             (Fedus et al. 2022, eq. 4; per sequence as DeepSeek-AI 2024, section 2.1.2)
//   z         zeta mean over tokens of z^2 (Zoph et al. 2022, eq. 5)
//
// S: tokens of the sequence, T: of the global batch. Empty positions (tensor/sequence_layout.hpp) are not tokens: they
// are not routed, counted, averaged or dropped, and no expert computes them.
// alpha: router_aux_loss_coef, scaled as router_aux_loss_scale says; zeta: router_z_loss_coef.

#include <optional>

#include "nanotron/kernels/moe/routing.hpp"
#include "nanotron/nn/linear/linear.hpp"
#include "nanotron/nn/mlp/activation.hpp"
#include "nanotron/nn/mlp/feed_forward.hpp"
#include "nanotron/nn/moe/expert_biases.hpp"
#include "nanotron/nn/moe/expert_capacity.hpp"
#include "nanotron/nn/moe/expert_exchange.hpp"
#include "nanotron/nn/moe/expert_linear.hpp"
#include "nanotron/nn/moe/expert_sums.hpp"

namespace nanotron::nn {

/// The orders of sums over an expert's width, the shared expert's width, and tokens (kernels/gemm/gemm.hpp).
struct MoeOrders {
  SumOrder width{}, shared_width{}, tokens{};
};

/// Shared by all layers; empty for dense networks. cp: the group that shards a sequence.
template <class T>
struct MoeParts {
  MoeSizes sizes{};
  kernels::Routing routing{};
  kernels::RouterScales scales{};  // except the tokens, see TokenBatch
  MoeOrders orders{};
  index_t gradient_stride = 0;  // elements between the gradients of two sequences
  int ep_size = 1;
  comm::Group *cp = &comm::alone(), *slices = &comm::alone();   // slices: its ranks send a slice of the tokens each
  std::vector<std::unique_ptr<ExpertExchange<T>>> exchanges{};  // by RoutedWorkspace::turn
  std::unique_ptr<ExpertCapacity> capacity{};
  std::unique_ptr<ExpertSums<T>> sums{};
};

template <class T>
struct MoeWeights {
  LinearWeights<T> router;                  // rows: the experts, then a shared expert's gate; bias: of experts
  Vector<const master_t<T>> choice_bias{};  // b of kernels/moe/routing.hpp; empty: none
  std::unique_ptr<const ExpertLinear<T>> gate_up, down;
  ExpertBiases<T> biases;
  std::optional<MlpLinears<T>> shared;
  std::shared_ptr<const Activation<T>> act;
};

template <class T>
class Moe final : public FeedForward<T> {
 public:
  using M = master_t<T>;

  /// parts must outlive it. backward_input adds to sums (2 experts + 2) of this layer, see kernels::add_router_sums.
  Moe(MoeWeights<T> weights, const MoeParts<T>& parts, Vector<double> sums)
      : w_(std::move(weights)), parts_(&parts), sums_(sums) {}

  void forward_to_last_gemm(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                            const BlockInput<T>& n, const FeedForwardActivations<T>& act,
                            const FeedForwardWorkspace<T>& work) const override;
  void forward_route(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region, const BlockInput<T>& n,
                     const FeedForwardActivations<T>& act, const FeedForwardWorkspace<T>& work) const override;
  void forward_dispatch(Device& device, const FeedForwardActivations<T>& act,
                        const FeedForwardWorkspace<T>& work) const override;
  void forward_rows(Device& device, const FeedForwardActivations<T>& act,
                    const FeedForwardWorkspace<T>& work) const override;
  void start_output(Device& device, const FeedForwardActivations<T>& act,
                    const FeedForwardWorkspace<T>& work) const override;
  [[nodiscard]] Pending finish_output(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                                      const BlockInput<T>&, const FeedForwardActivations<T>& act,
                                      const FeedForwardWorkspace<T>& work, Matrix<const T>, Matrix<T> y) const override;
  bool adds() const override { return false; }
  bool has_steps() const override { return !parts_->exchanges.front()->is_local(); }
  [[nodiscard]] Pending forward_output(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                                       const BlockInput<T>&, const FeedForwardActivations<T>& act,
                                       const FeedForwardWorkspace<T>& work, Matrix<const T>, Matrix<T>) const override;
  PassTraffic traffic(const TensorParallelRegion<T>& region) const override;
  void compute_hidden(Device& device, const FeedForwardActivations<T>& act) const override;
  Matrix<const T> backward_inside(Device& device, TensorParallelRegion<T>& region, Matrix<const T> dy,
                                  const FeedForwardActivations<T>& act,
                                  const FeedForwardWorkspace<T>& work) const override;
  Matrix<const T> backward_start(Device& device, TensorParallelRegion<T>& region, Matrix<const T> dy,
                                 const FeedForwardActivations<T>& act,
                                 const FeedForwardWorkspace<T>& work) const override;
  void backward_rows(Device& device, const FeedForwardActivations<T>& act,
                     const FeedForwardWorkspace<T>& work) const override;
  void backward_rows_weight(Device& device, const FeedForwardActivations<T>& act,
                            const FeedForwardWorkspace<T>& work) const override;
  [[nodiscard]] Pending backward_input(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                                       const FeedForwardActivations<T>& act, const FeedForwardWorkspace<T>& work,
                                       Matrix<T> dn) const override;
  void backward_output_weight(Device& device, Matrix<const T> dy, const FeedForwardActivations<T>& act,
                              const FeedForwardWorkspace<T>& work) const override;
  void backward_input_weight(Device& device, Matrix<const T> n, const FeedForwardActivations<T>& act,
                             const FeedForwardWorkspace<T>& work) const override;
  void prepare(Device& device, const FeedForwardActivations<T>& act,
               const FeedForwardWorkspace<T>& work) const override;

 private:
  Matrix<const T> gather_and_route(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                                   const BlockInput<T>& n, const FeedForwardActivations<T>& act,
                                   const FeedForwardWorkspace<T>& work) const;
  void route(Device& device, const TokenBatch& batch, Matrix<const T> n, const RoutedActivations<T>& act,
             const RoutedWorkspace<T>& work) const;
  void forward_shared(Device& device, TensorParallelRegion<T>& region, Matrix<const T> n,
                      const RoutedActivations<T>& act, const RoutedWorkspace<T>& work) const;
  void multiply_in_chunks(Device& device, TensorParallelRegion<T>& region, const RowGemm<T>& gemm, Matrix<const T> x,
                          Matrix<T> y, const RoutedWorkspace<T>& work) const;
  void backward_router(Device& device, const TokenBatch& batch, const RoutedActivations<T>& act,
                       const RoutedWorkspace<T>& work) const;
  void compute_rows(Device& device, const RoutedActivations<T>& act) const;
  void compute_shared_hidden(Device& device, const RoutedActivations<T>& act, index_t tokens) const;
  TokenRoutes routes(const RoutedActivations<T>& act, index_t tokens) const;
  void receive_again(Device& device, const RoutedActivations<T>& act, const RoutedWorkspace<T>& work) const;
  Matrix<T> input(const RoutedActivations<T>& act, const RoutedWorkspace<T>& work) const;
  bool has_shared_gate() const { return parts_->sizes.columns > parts_->sizes.experts; }
  ExpertExchange<T>& exchange(const RoutedWorkspace<T>& work) const { return *parts_->exchanges[work.turn]; }
  bool is_beside() const { return w_.shared && has_steps(); }  // a shared expert runs beside rows in flight
  RowGemm<T> shared_gate_up() const, shared_dhidden() const, no_columns() const, no_features() const;  // no: empty
  Matrix<T> in_gather(const Matrix<T>& of_shared, index_t tokens) const;

  MoeWeights<T> w_;
  const MoeParts<T>* parts_;
  Vector<double> sums_;
};

}  // namespace nanotron::nn
