#pragma once

// What all kinds of decoder layers are made of: two blocks with their norms, and backward of one block. Private to
// the model layer.

#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/model/layers/decoder_layer.hpp"
#include "nanotron/nn/dropout/dropout.hpp"

namespace nanotron::model::detail {

/// How the output of a block joins the hidden states x.
template <class T>
class Join {
 public:
  using M = master_t<T>;
  /// norm: null where there is none. multiplier and mask: of the output, none with a norm. block_adds: the block's last
  /// GEMM can add x.
  Join(std::unique_ptr<const nn::Norm<T>> norm, double multiplier, const nn::RowMask<T>& mask, bool block_adds,
       ResidualSum sum)
      : norm_(std::move(norm)),
        multiplier_(multiplier),
        mask_(mask),
        sum_(block_adds && !is_apart() ? sum : ResidualSum::in_norm) {}

  /// What the block's last GEMM adds, and where it writes the output: x_out is to be the sum of x and the output.
  Matrix<const T> addend(const Matrix<T>& x) const {
    return sum_ == ResidualSum::in_gemm ? Matrix<const T>(x) : Matrix<const T>();
  }
  Matrix<T> target(const BlockOutput<T>& out, const Matrix<T>& x_out) const { return is_apart() ? out.y : x_out; }
  /// After it. Returns x_out and what remains to be added.
  nn::HiddenStates<T> add(Device& device, const nn::TokenBatch& batch, const Matrix<T>& x, const BlockOutput<T>& out,
                          const Matrix<T>& x_out) const;

  /// The gradient of the block's output: dx itself, or written over the output.
  Matrix<const T> backward(Device& device, const nn::TokenBatch& batch, Matrix<const T> dx, const BlockOutput<T>& out,
                           const Vector<M>& sums) const;
  /// Whether the output is written apart from x_out, and its gradient over it.
  bool is_apart() const { return norm_ != nullptr || multiplier_ != 1.0 || mask_.exists(); }
  /// Whether backward reads the output.
  bool reads_output() const { return norm_ != nullptr; }

 private:
  std::unique_ptr<const nn::Norm<T>> norm_;
  double multiplier_;
  nn::RowMask<T> mask_;
  ResidualSum sum_;
};

/// The two blocks of a layer and the passes that are the same in all kinds.
template <class T>
class LayerBlocks : public DecoderLayer<T> {
 public:
  bool reads_weights_later() const override { return feed_forward_->is_in_tiles(); }
  LayerBlocks(LayerParts<T> parts, nn::TensorParallelRegion<T>& region)
      : input_norm_(std::move(parts.attention_norms.input)),
        attention_join_(std::move(parts.attention_norms.output), parts.multiplier, {parts.attention_mask, region},
                        parts.attention->adds(), parts.sum),
        attention_(std::move(parts.attention)),
        middle_norm_(std::move(parts.mlp_norms.input)),
        mlp_join_(std::move(parts.mlp_norms.output), parts.multiplier, {parts.mlp_mask, region},
                  parts.feed_forward->adds(), parts.sum),
        feed_forward_(std::move(parts.feed_forward)),
        tp_region_(&region) {}

  LayerTraffic traffic() const override;
  void recompute(Device& device, const nn::TokenBatch& batch, Matrix<T> x, const LayerActivations<T>& act,
                 const Workspace<T>& work, Matrix<T> x_out) const override {
    this->forward(device, batch, {x}, act, work, mlp_join_.reads_output() ? x_out : Matrix<T>());
  }
  bool has_steps() const override { return feed_forward_->has_steps(); }
  void forward_route(Device& device, const LayerPass<T>& pass) const override;
  void forward_dispatch(Device& device, const LayerPass<T>& pass) const override;
  void forward_rows(Device& device, const LayerPass<T>& pass) const override;
  void start_output(Device& device, const LayerPass<T>& pass) const override;
  bool recomputes_output() const override { return mlp_join_.reads_output(); }
  void backward_start(Device& device, LayerPass<T>& pass, Matrix<T> dx) const override;
  void backward_rows(Device& device, const LayerPass<T>& pass) const override;
  void backward_rows_weight(Device& device, const LayerPass<T>& pass) const override;
  void prepare(Device& device, const LayerActivations<T>& act, const Workspace<T>& work) const override {
    feed_forward_->prepare(device, act.feed_forward, work.feed_forward);
  }

 protected:
  /// dy, gradient of the block's output -> dn, of its input n. Accumulates all weight gradients.
  void backward_attention(Device& device, const nn::TokenBatch& batch, Matrix<const T> dy, const nn::BlockInput<T>& n,
                          const LayerActivations<T>& act, const Workspace<T>& work, Matrix<T> dn) const;
  void backward_mlp(Device& device, const nn::TokenBatch& batch, Matrix<const T> dy, const nn::BlockInput<T>& n,
                    const LayerActivations<T>& act, const Workspace<T>& work, Matrix<T> dn) const;
  /// The second part of backward_mlp, after FeedForward::backward_rows.
  void finish_mlp(Device& device, const LayerPass<T>& pass, const nn::BlockInput<T>& n, Matrix<T> dn) const;
  /// The same without weight gradients; dn is complete after wait().
  nn::Pending backward_mlp_input(Device& device, const LayerPass<T>& pass, const nn::BlockInput<T>& n,
                                 Matrix<T> dn) const;
  /// What the feed-forward network reads.
  virtual nn::BlockInput<T> mlp_input(const LayerActivations<T>& act, Matrix<const T> x) const = 0;
  /// The weight gradients alone, after the input gradients.
  void backward_attention_weight(Device& device, Matrix<const T> dy, const nn::BlockInput<T>& n,
                                 const LayerActivations<T>& act, const Workspace<T>& work) const;
  void backward_mlp_weight(Device& device, Matrix<const T> dy, const nn::BlockInput<T>& n,
                           const LayerActivations<T>& act, const Workspace<T>& work) const;

  std::unique_ptr<const nn::Norm<T>> input_norm_;
  Join<T> attention_join_;
  std::unique_ptr<const nn::Attention<T>> attention_;
  std::unique_ptr<const nn::Norm<T>> middle_norm_;
  Join<T> mlp_join_;
  std::unique_ptr<const nn::FeedForward<T>> feed_forward_;
  nn::TensorParallelRegion<T>* tp_region_;
};

}  // namespace nanotron::model::detail
