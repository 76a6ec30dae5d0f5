#include "nanotron/nn/attention/rotation.hpp"

#include "nanotron/base/types.hpp"
#include "nanotron/kernels/attention/rotary.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"

namespace nanotron::nn {
namespace {

kernels::RotaryScaling scaling_of(const deck::ModelConfig& m) {
  const auto length = static_cast<double>(m.original_max_position_embeddings);
  switch (m.rope_type) {
    case deck::RopeType::llama3:
      return kernels::RotaryScaling(
          kernels::RotaryScaling::Llama3{m.rope_factor, m.rope_low_freq_factor, m.rope_high_freq_factor, length});
    case deck::RopeType::yarn:
      return kernels::RotaryScaling(kernels::RotaryScaling::Yarn{m.rope_factor, m.rope_beta_fast, m.rope_beta_slow,
                                                                 m.rope_attention_factor, length},
                                    m.rope_theta, m.head_dim);
    default:
      return {};
  }
}

}  // namespace

template <class T>
Rotation<T>::Rotation(const deck::ModelConfig& model, index_t positions, Device& device, Arena& arena) {
  if (model.has_learned_positions()) return;
  const index_t half = model.head_dim / 2;
  cosine_ = arena.take<M>(MemoryKind::workspace, positions, half);
  sine_ = arena.take<M>(MemoryKind::workspace, positions, half);
  if (!arena.is_planning()) kernels::rotary_tables<M>(device, model.rope_theta, cosine_, sine_, scaling_of(model));
}

template <class T>
void Rotation<T>::forward(Device& device, const MatrixRef<T>& x, Vector<const std::int32_t> positions) const {
  if (cosine_.extent(0) > 0) kernels::rotary_forward<T>(device, x, positions, cosine_, sine_);
}

template <class T>
void Rotation<T>::forward_with_bias(Device& device, const MatrixRef<T>& x, index_t rotated, Vector<const M> bias,
                                    Vector<const std::int32_t> positions) const {
  if (bias.extent(0) == 0) return forward(device, x.column_block(0, rotated), positions);
  if (cosine_.extent(0) == 0) return kernels::bias_add<T>(device, x, bias);
  kernels::bias_rotary_forward<T>(device, x, rotated, bias, positions, cosine_, sine_);
}

template <class T>
void Rotation<T>::backward(Device& device, const MatrixRef<T>& dx, Vector<const std::int32_t> positions) const {
  if (cosine_.extent(0) > 0) kernels::rotary_backward<T>(device, dx, positions, cosine_, sine_);
}

NANOTRON_INSTANTIATE_CLASS(Rotation)

}  // namespace nanotron::nn
