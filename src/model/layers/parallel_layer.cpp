#include "parallel_layer.hpp"

#include "layer_blocks.hpp"
#include "nanotron/base/flight_recorder.hpp"
#include "nanotron/base/types.hpp"

namespace nanotron::model::detail {
namespace {

// Attention and feed-forward network from the same hidden states (Wang and Komatsuzaki 2021, GPT-J):
//
//   x_out = x + attention(norm(x)) + mlp(norm'(x)), or the same norm for both
template <class T>
class ParallelLayer final : public LayerBlocks<T> {
 public:
  ParallelLayer(bool shares_norm, LayerParts<T> parts, nn::TensorParallelRegion<T>& region)
      : LayerBlocks<T>(std::move(parts), region), shares_norm_(shares_norm) {}

  nn::HiddenStates<T> forward(Device& device, const nn::TokenBatch& batch, const nn::HiddenStates<T>& x,
                              const LayerActivations<T>& act, const Workspace<T>& work, Matrix<T> x_out) const override;
  void recompute_selective(Device& device, Matrix<T> x, const LayerActivations<T>& act) const override;
  void backward(Device& device, const nn::TokenBatch& batch, Matrix<const T> x, const LayerActivations<T>& act,
                const Workspace<T>& work, Matrix<T> dx) const override;
  void backward_input(Device& device, const nn::TokenBatch& batch, Matrix<const T> x, const LayerActivations<T>& act,
                      const Workspace<T>& work, Matrix<T> x_out, Matrix<T> dx) const override;
  void backward_weight(Device& device, Matrix<const T> x, const LayerActivations<T>& act, const Workspace<T>& work,
                       Matrix<const T> x_out) const override;

 private:
  void backward_norms(Device& device, Matrix<const T> x, const LayerActivations<T>& act, const Workspace<T>& work,
                      Matrix<T> dx) const;

  using LayerBlocks<T>::attention_;
  using LayerBlocks<T>::attention_join_;
  using LayerBlocks<T>::feed_forward_;
  using LayerBlocks<T>::input_norm_;
  using LayerBlocks<T>::middle_norm_;
  using LayerBlocks<T>::mlp_join_;
  using LayerBlocks<T>::tp_region_;
  bool shares_norm_;
};

// act.middle = x + attention(norm(x)): the sum is complete, or waits for the norm of the next layer.
template <class T>
nn::HiddenStates<T> ParallelLayer<T>::forward(Device& device, const nn::TokenBatch& batch, const nn::HiddenStates<T>& x,
                                              const LayerActivations<T>& act, const Workspace<T>& work,
                                              Matrix<T> x_out) const {
  flight_recorder().at_part("attention");
  input_norm_->forward(device, x, act.input_norm, act.input_statistics, act.attention.of_input.maxima);
  attention_
      ->forward(device, batch, *tp_region_, act.attention_input(x.x), act.attention, work.attention,
                attention_join_.addend(x.x), act.middle)
      .wait();
  attention_->add_output_bias(device, *tp_region_, act.middle);

  flight_recorder().at_part("mlp");
  if (!shares_norm_)
    middle_norm_->forward(device, {x.x}, act.middle_norm, act.middle_statistics, act.feed_forward.mlp.of_input.maxima);
  feed_forward_->forward_to_last_gemm(device, batch, *tp_region_, act.mlp_input(x.x), act.feed_forward,
                                      work.feed_forward);
  if (x_out.extent(0) == 0) return {};
  if (!attention_join_.add(device, batch, x.x, {}, act.middle).is_whole())
    kernels::add<T>(device, flat(x.x), flat(act.middle));
  feed_forward_
      ->forward_output(device, batch, *tp_region_, act.feed_forward, work.feed_forward, mlp_join_.addend(act.middle),
                       x_out)
      .wait();
  feed_forward_->add_output_bias(device, *tp_region_, x_out);
  return mlp_join_.add(device, batch, act.middle, {}, x_out);
}

// dx: gradient of x_out, and so of the output of both blocks.
//   dn_mlp = mlp backward of dx        dn = attention backward of dx
//   dx += norm' backward of dn_mlp + norm backward of dn, or norm backward of dn_mlp + dn
template <class T>
void ParallelLayer<T>::backward(Device& device, const nn::TokenBatch& batch, Matrix<const T> x,
                                const LayerActivations<T>& act, const Workspace<T>& work, Matrix<T> dx) const {
  this->backward_mlp(device, batch, dx, act.mlp_input(x), act, work, work.dn_mlp);
  this->backward_attention(device, batch, dx, act.attention_input(x), act, work, work.dn);
  backward_norms(device, x, act, work, dx);
}

template <class T>
void ParallelLayer<T>::backward_norms(Device& device, Matrix<const T> x, const LayerActivations<T>& act,
                                      const Workspace<T>& work, Matrix<T> dx) const {
  if (shares_norm_) {
    kernels::add<T>(device, flat(work.dn_mlp), flat(work.dn));
  } else {
    middle_norm_->backward(device, work.dn_mlp, x, act.middle_statistics, dx, work.sums);
  }
  input_norm_->backward(device, work.dn, x, act.input_statistics, dx, work.sums);
}

// The second part reads x_out <- d x_out.
template <class T>
void ParallelLayer<T>::backward_input(Device& device, const nn::TokenBatch& batch, Matrix<const T> x,
                                      const LayerActivations<T>& act, const Workspace<T>& work, Matrix<T> x_out,
                                      Matrix<T> dx) const {
  flight_recorder().at_part("mlp");
  feed_forward_->backward_inside(device, *tp_region_, dx, act.feed_forward, work.feed_forward);
  nn::Pending dn =
      feed_forward_->backward_input(device, batch, *tp_region_, act.feed_forward, work.feed_forward, work.dn_mlp);
  kernels::copy_matrix<T>(device, dx, x_out);
  dn.wait();

  flight_recorder().at_part("attention");
  attention_->backward_inside(device, batch, *tp_region_, dx, act.attention, work.attention);
  dn = attention_->backward_input(device, *tp_region_, act.attention, work.attention, work.dn);
  attention_->keep_gradients(device, act.attention, work.attention);
  dn.wait();
  backward_norms(device, x, act, work, dx);
}

template <class T>
void ParallelLayer<T>::backward_weight(Device& device, Matrix<const T> x, const LayerActivations<T>& act,
                                       const Workspace<T>& work, Matrix<const T> x_out) const {
  this->backward_mlp_weight(device, x_out, act.mlp_input(x), act, work);
  this->backward_attention_weight(device, x_out, act.attention_input(x), act, work);
}

template <class T>
void ParallelLayer<T>::recompute_selective(Device& device, Matrix<T> x, const LayerActivations<T>& act) const {
  if (act.input_norm_kept.extent(0) == 0)
    input_norm_->forward(device, {x}, act.input_norm, act.input_statistics, act.attention.of_input.maxima);
  if (act.middle_norm_kept.extent(0) == 0 && !shares_norm_) {
    middle_norm_->forward(device, {x}, act.middle_norm, act.middle_statistics, act.feed_forward.mlp.of_input.maxima);
  }
  feed_forward_->compute_hidden(device, act.feed_forward);
}

}  // namespace

template <class T>
std::unique_ptr<const DecoderLayer<T>> make_parallel_layer(const LayerLayout& layout, LayerParts<T> parts,
                                                           nn::TensorParallelRegion<T>& region) {
  return std::make_unique<ParallelLayer<T>>(layout.shares_input(), std::move(parts), region);
}

#define NANOTRON_INSTANTIATE(T)                                                                          \
  template std::unique_ptr<const DecoderLayer<T>> make_parallel_layer(const LayerLayout&, LayerParts<T>, \
                                                                      nn::TensorParallelRegion<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::model::detail
