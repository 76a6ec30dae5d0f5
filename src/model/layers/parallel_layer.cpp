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
  void forward_attention(Device& device, const LayerPass<T>& pass) const override;
  nn::HiddenStates<T> finish_output(Device& device, const LayerPass<T>& pass) const override;
  void recompute_selective(Device& device, Matrix<T> x, const LayerActivations<T>& act) const override;
  void backward(Device& device, const nn::TokenBatch& batch, Matrix<const T> x, const LayerActivations<T>& act,
                const Workspace<T>& work, Matrix<T> dx) const override;
  void backward_input(Device& device, const nn::TokenBatch& batch, Matrix<const T> x, const LayerActivations<T>& act,
                      const Workspace<T>& work, Matrix<T> x_out, Matrix<T> dx) const override;
  void backward_weight(Device& device, Matrix<const T> x, const LayerActivations<T>& act, const Workspace<T>& work,
                       Matrix<const T> x_out) const override;
  void backward_finish(Device& device, const LayerPass<T>& pass, Matrix<T> dx) const override;
  void backward_input_finish(Device& device, const LayerPass<T>& pass, Matrix<T> dx) const override;

 private:
  nn::BlockInput<T> mlp_input(const LayerActivations<T>& act, Matrix<const T> x) const override {
    return act.mlp_input(x);
  }
  void input_gradients(Device& device, const LayerPass<T>& pass, Matrix<const T> x, Matrix<T> dx) const;
  void backward_norms(Device& device, Matrix<const T> x, const LayerActivations<T>& act, const Workspace<T>& work,
                      Matrix<T> dx) const;

  using LayerBlocks<T>::attention_;
  using LayerBlocks<T>::attention_join_;
  using LayerBlocks<T>::feed_forward_;
  using LayerBlocks<T>::input_norm_;
  using LayerBlocks<T>::middle_norm_;
  using LayerBlocks<T>::mlp_join_;
  bool shares_norm_;
};

// act.middle = x + attention(norm(x)): the sum is complete, or waits for the norm of the next layer.
template <class T>
nn::HiddenStates<T> ParallelLayer<T>::forward(Device& device, const nn::TokenBatch& batch, const nn::HiddenStates<T>& x,
                                              const LayerActivations<T>& act, const Workspace<T>& work,
                                              Matrix<T> x_out) const {
  const LayerPass<T> pass{&batch, x, &act, &work, x_out};
  forward_attention(device, pass);
  feed_forward_->forward_to_last_gemm(device, batch, *work.region, act.mlp_input(x.x), act.feed_forward,
                                      work.feed_forward);
  if (x_out.extent(0) == 0) return {};
  feed_forward_->start_output(device, act.feed_forward, work.feed_forward);
  return finish_output(device, pass);
}

template <class T>
void ParallelLayer<T>::forward_attention(Device& device, const LayerPass<T>& pass) const {
  flight_recorder().at_part("attention");
  const LayerActivations<T>& act = *pass.act;
  const Workspace<T>& work = *pass.work;
  const Matrix<T> x = pass.x.x;
  input_norm_->forward(device, pass.x, act.input_norm, act.input_statistics, act.attention.of_input.maxima);
  attention_
      ->forward(device, *pass.batch, *work.region, act.attention_input(x), act.attention, work.attention,
                attention_join_.addend(x), act.middle)
      .wait();
  attention_->add_output_bias(device, *work.region, act.middle);
  flight_recorder().at_part("mlp");
  if (!shares_norm_)
    middle_norm_->forward(device, {x}, act.middle_norm, act.middle_statistics, act.feed_forward.mlp.of_input.maxima);
}

template <class T>
nn::HiddenStates<T> ParallelLayer<T>::finish_output(Device& device, const LayerPass<T>& pass) const {
  const LayerActivations<T>& act = *pass.act;
  const Workspace<T>& work = *pass.work;
  const Matrix<T> x = pass.x.x;
  if (!attention_join_.add(device, *pass.batch, x, {}, act.middle).is_whole())
    kernels::add<T>(device, flat(x), flat(act.middle));
  feed_forward_
      ->finish_output(device, *pass.batch, *work.region, act.mlp_input(x), act.feed_forward, work.feed_forward,
                      mlp_join_.addend(act.middle), pass.x_out)
      .wait();
  feed_forward_->add_output_bias(device, *work.region, pass.x_out);
  return mlp_join_.add(device, *pass.batch, act.middle, {}, pass.x_out);
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

template <class T>
void ParallelLayer<T>::backward_finish(Device& device, const LayerPass<T>& p, Matrix<T> dx) const {
  const LayerActivations<T>& act = *p.act;
  const Workspace<T>& work = *p.work;
  flight_recorder().at_part("mlp");
  this->finish_mlp(device, p, act.mlp_input(p.x.x), work.dn_mlp);
  this->backward_attention(device, *p.batch, dx, act.attention_input(p.x.x), act, work, work.dn);
  backward_norms(device, p.x.x, act, work, dx);
}

template <class T>
void ParallelLayer<T>::backward_input(Device& device, const nn::TokenBatch& batch, Matrix<const T> x,
                                      const LayerActivations<T>& act, const Workspace<T>& work, Matrix<T> x_out,
                                      Matrix<T> dx) const {
  LayerPass<T> pass{&batch, {}, &act, &work, x_out};
  this->backward_start(device, pass, dx);
  this->backward_rows(device, pass);
  input_gradients(device, pass, x, dx);
}

template <class T>
void ParallelLayer<T>::backward_input_finish(Device& device, const LayerPass<T>& p, Matrix<T> dx) const {
  flight_recorder().at_part("mlp");
  input_gradients(device, p, p.x.x, dx);
}

// The second part reads x_out <- d x_out.
template <class T>
void ParallelLayer<T>::input_gradients(Device& device, const LayerPass<T>& p, Matrix<const T> x, Matrix<T> dx) const {
  const LayerActivations<T>& act = *p.act;
  const Workspace<T>& work = *p.work;
  nn::Pending dn = this->backward_mlp_input(device, p, act.mlp_input(x), work.dn_mlp);
  kernels::copy_matrix<T>(device, dx, p.x_out);
  dn.wait();

  flight_recorder().at_part("attention");
  attention_->backward_inside(device, *p.batch, *work.region, dx, act.attention, work.attention);
  dn = attention_->backward_input(device, *work.region, act.attention, work.attention, work.dn);
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
