#include "nanotron/model/layers/decoder_layer.hpp"

#include "layer_blocks.hpp"
#include "nanotron/base/flight_recorder.hpp"
#include "nanotron/base/types.hpp"
#include "parallel_layer.hpp"

namespace nanotron::model {
namespace {

using namespace detail;

// One block after the other. With norms of the inputs only:
//
//   x_mid = x + attention(norm(x))        x_out = x_mid + mlp(norm(x_mid))
//
template <class T>
class SequentialLayer final : public LayerBlocks<T> {
 public:
  using LayerBlocks<T>::LayerBlocks;

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
  void attend(Device& device, const LayerPass<T>& pass) const;
  void backward_to_input(Device& device, const nn::TokenBatch& batch, Matrix<const T> x, const LayerActivations<T>& act,
                         const Workspace<T>& work, Matrix<T> dx) const;
  void input_gradients(Device& device, const LayerPass<T>& pass, Matrix<const T> x, Matrix<T> dx) const;
  nn::BlockInput<T> mlp_input(const LayerActivations<T>& act, Matrix<const T>) const override {
    return act.mlp_input(act.middle);
  }

  using LayerBlocks<T>::attention_;
  using LayerBlocks<T>::attention_join_;
  using LayerBlocks<T>::feed_forward_;
  using LayerBlocks<T>::input_norm_;
  using LayerBlocks<T>::middle_norm_;
  using LayerBlocks<T>::mlp_join_;
};

template <class T>
nn::HiddenStates<T> SequentialLayer<T>::forward(Device& device, const nn::TokenBatch& batch,
                                                const nn::HiddenStates<T>& x, const LayerActivations<T>& act,
                                                const Workspace<T>& work, Matrix<T> x_out) const {
  flight_recorder().at_part("attention");
  input_norm_->forward(device, x, act.input_norm, act.input_statistics, act.attention.of_input.maxima);
  const LayerPass<T> pass{&batch, x, &act, &work, x_out};
  attend(device, pass);
  flight_recorder().at_part("mlp");
  feed_forward_->forward_to_last_gemm(device, batch, *work.region, act.mlp_input(act.middle), act.feed_forward,
                                      work.feed_forward);
  if (x_out.extent(0) == 0) return {};
  feed_forward_->start_output(device, act.feed_forward, work.feed_forward);
  return finish_output(device, pass);
}

template <class T>
void SequentialLayer<T>::forward_attention(Device& device, const LayerPass<T>& pass) const {
  flight_recorder().at_part("attention");
  const LayerActivations<T>& act = *pass.act;
  input_norm_->forward(device, pass.x, act.input_norm, act.input_statistics, act.attention.of_input.maxima);
  attend(device, pass);
}

// After the norm of the input, to that of the feed-forward network.
template <class T>
void SequentialLayer<T>::attend(Device& device, const LayerPass<T>& pass) const {
  const LayerActivations<T>& act = *pass.act;
  const Workspace<T>& work = *pass.work;
  const Matrix<T> x = pass.x.x;
  const Matrix<T> y1 = attention_join_.target(act.attention_output, act.middle);
  attention_
      ->forward(device, *pass.batch, *work.region, act.attention_input(x), act.attention, work.attention,
                attention_join_.addend(x), y1)
      .wait();
  attention_->add_output_bias(device, *work.region, y1);
  const nn::HiddenStates<T> x_mid = attention_join_.add(device, *pass.batch, x, act.attention_output, act.middle);
  middle_norm_->forward(device, x_mid, act.middle_norm, act.middle_statistics, act.feed_forward.mlp.of_input.maxima);
}

template <class T>
nn::HiddenStates<T> SequentialLayer<T>::finish_output(Device& device, const LayerPass<T>& pass) const {
  const LayerActivations<T>& act = *pass.act;
  const Workspace<T>& work = *pass.work;
  const Matrix<T> y2 = mlp_join_.target(act.mlp_output, pass.x_out);
  feed_forward_
      ->finish_output(device, *pass.batch, *work.region, act.mlp_input(act.middle), act.feed_forward, work.feed_forward,
                      mlp_join_.addend(act.middle), y2)
      .wait();
  feed_forward_->add_output_bias(device, *work.region, y2);
  return mlp_join_.add(device, *pass.batch, act.middle, act.mlp_output, pass.x_out);
}

// dx: gradient of x_out on entry; dy of a block's output, dn of its input.
//   dn = mlp backward of dy               dx += norm backward of dn: the gradient of x_mid
//   dn = attention backward of dy         dx += norm backward of dn: the gradient of x
template <class T>
void SequentialLayer<T>::backward(Device& device, const nn::TokenBatch& batch, Matrix<const T> x,
                                  const LayerActivations<T>& act, const Workspace<T>& work, Matrix<T> dx) const {
  this->backward_mlp(device, batch, mlp_join_.backward(device, batch, dx, act.mlp_output, work.sums),
                     act.mlp_input(act.middle), act, work, work.dn);
  backward_to_input(device, batch, x, act, work, dx);
}

template <class T>
void SequentialLayer<T>::backward_finish(Device& device, const LayerPass<T>& p, Matrix<T> dx) const {
  const LayerActivations<T>& act = *p.act;
  flight_recorder().at_part("mlp");
  this->finish_mlp(device, p, act.mlp_input(act.middle), p.work->dn);
  backward_to_input(device, *p.batch, p.x.x, act, *p.work, dx);
}

// After backward of the feed-forward network.
template <class T>
void SequentialLayer<T>::backward_to_input(Device& device, const nn::TokenBatch& batch, Matrix<const T> x,
                                           const LayerActivations<T>& act, const Workspace<T>& work,
                                           Matrix<T> dx) const {
  middle_norm_->backward(device, work.dn, act.middle, act.middle_statistics, dx, work.sums);
  this->backward_attention(device, batch, attention_join_.backward(device, batch, dx, act.attention_output, work.sums),
                           act.attention_input(x), act, work, work.dn);
  input_norm_->backward(device, work.dn, x, act.input_statistics, dx, work.sums);
}

template <class T>
void SequentialLayer<T>::backward_input(Device& device, const nn::TokenBatch& batch, Matrix<const T> x,
                                        const LayerActivations<T>& act, const Workspace<T>& work, Matrix<T> x_out,
                                        Matrix<T> dx) const {
  LayerPass<T> pass{&batch, {}, &act, &work, x_out};
  this->backward_start(device, pass, dx);
  this->backward_rows(device, pass);
  input_gradients(device, pass, x, dx);
}

template <class T>
void SequentialLayer<T>::backward_input_finish(Device& device, const LayerPass<T>& p, Matrix<T> dx) const {
  flight_recorder().at_part("mlp");
  input_gradients(device, p, p.x.x, dx);
}

// The second part reads the gradients of the blocks' outputs where Join left them; else
//   x_out <- d x_out, act.middle <- d x_mid
template <class T>
void SequentialLayer<T>::input_gradients(Device& device, const LayerPass<T>& p, Matrix<const T> x, Matrix<T> dx) const {
  const nn::TokenBatch& batch = *p.batch;
  const LayerActivations<T>& act = *p.act;
  const Workspace<T>& work = *p.work;
  nn::Pending dn = this->backward_mlp_input(device, p, act.mlp_input(act.middle), work.dn);
  if (!mlp_join_.is_apart()) kernels::copy_matrix<T>(device, dx, p.x_out);
  dn.wait();
  middle_norm_->backward(device, work.dn, act.middle, act.middle_statistics, dx, work.sums);

  flight_recorder().at_part("attention");
  attention_->backward_inside(device, batch, *work.region,
                              attention_join_.backward(device, batch, dx, act.attention_output, work.sums),
                              act.attention, work.attention);
  dn = attention_->backward_input(device, *work.region, act.attention, work.attention, work.dn);
  if (!attention_join_.is_apart()) kernels::copy_matrix<T>(device, dx, act.middle);
  attention_->keep_gradients(device, act.attention, work.attention);
  dn.wait();
  input_norm_->backward(device, work.dn, x, act.input_statistics, dx, work.sums);
}

template <class T>
void SequentialLayer<T>::backward_weight(Device& device, Matrix<const T> x, const LayerActivations<T>& act,
                                         const Workspace<T>& work, Matrix<const T> x_out) const {
  this->backward_mlp_weight(device, mlp_join_.is_apart() ? Matrix<const T>(act.mlp_output.y) : x_out,
                            act.mlp_input(act.middle), act, work);
  this->backward_attention_weight(device, attention_join_.is_apart() ? act.attention_output.y : act.middle,
                                  act.attention_input(x), act, work);
}

template <class T>
void SequentialLayer<T>::recompute_selective(Device& device, Matrix<T> x, const LayerActivations<T>& act) const {
  if (act.input_norm_kept.extent(0) == 0)
    input_norm_->forward(device, {x}, act.input_norm, act.input_statistics, act.attention.of_input.maxima);
  if (act.middle_norm_kept.extent(0) == 0) {
    middle_norm_->forward(device, {act.middle}, act.middle_norm, act.middle_statistics,
                          act.feed_forward.mlp.of_input.maxima);
  }
  feed_forward_->compute_hidden(device, act.feed_forward);
}

}  // namespace

template <class T>
std::unique_ptr<const DecoderLayer<T>> make_decoder_layer(const LayerLayout& layout, LayerParts<T> parts,
                                                          nn::TensorParallelRegion<T>& region) {
  if (layout.is_parallel) return make_parallel_layer(layout, std::move(parts), region);
  return std::make_unique<SequentialLayer<T>>(std::move(parts), region);
}

#define NANOTRON_INSTANTIATE(T)                                                                         \
  template std::unique_ptr<const DecoderLayer<T>> make_decoder_layer(const LayerLayout&, LayerParts<T>, \
                                                                     nn::TensorParallelRegion<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::model
