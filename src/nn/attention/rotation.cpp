#include "nanotron/nn/attention/rotation.hpp"

#include <optional>

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

template <class T>
std::vector<Rotation<T>> make_rotations(const deck::ModelConfig& model, const std::vector<deck::LayerKind>& kinds,
                                        index_t positions, Device& device, Arena& arena) {
  deck::ModelConfig local = model;
  local.rope_theta = model.rope_local_theta;
  local.rope_type = deck::RopeType::standard;
  std::optional<Rotation<T>> of_model, of_windows;
  std::vector<Rotation<T>> rotations;
  for (const deck::LayerKind& kind : kinds) {
    std::optional<Rotation<T>>& found = kind.has_local_theta ? of_windows : of_model;
    if (kind.is_rotated && !found) found.emplace(kind.has_local_theta ? local : model, positions, device, arena);
    rotations.push_back(kind.is_rotated ? *found : Rotation<T>());
  }
  return rotations;
}

NANOTRON_INSTANTIATE_CLASS(Rotation)
#define NANOTRON_INSTANTIATE(T)                                                                                   \
  template std::vector<Rotation<T>> make_rotations(const deck::ModelConfig&, const std::vector<deck::LayerKind>&, \
                                                   index_t, Device&, Arena&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::nn
