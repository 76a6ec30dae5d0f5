#include "nanotron/nn/attention/rotation.hpp"

#include <optional>

#include "nanotron/base/types.hpp"
#include "nanotron/deck/attention_sizes.hpp"
#include "nanotron/deck/reals.hpp"
#include "nanotron/kernels/attention/rotary.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"

namespace nanotron::nn {
namespace {

kernels::RotaryScaling long_rope(const deck::ModelConfig& m, index_t positions) {
  const bool is_long = positions > m.original_max_position_embeddings;
  return kernels::RotaryScaling(kernels::RotaryScaling::LongRope{
      .factors = deck::reals(is_long ? m.rope_long_factor : m.rope_short_factor).value_or(std::vector<double>{}),
      .factor = m.rope_factor,
      .original_length = static_cast<double>(m.original_max_position_embeddings),
      .attention_factor = m.rope_attention_factor});
}

kernels::RotaryScaling scaling_of(const deck::ModelConfig& m, index_t positions) {
  const auto length = static_cast<double>(m.original_max_position_embeddings);
  switch (m.rope_type) {
    case deck::RopeType::linear:
      return kernels::RotaryScaling(kernels::RotaryScaling::Linear{m.rope_factor});
    case deck::RopeType::longrope:
      return long_rope(m, positions);
    case deck::RopeType::llama3:
      return kernels::RotaryScaling(
          kernels::RotaryScaling::Llama3{m.rope_factor, m.rope_low_freq_factor, m.rope_high_freq_factor, length});
    case deck::RopeType::yarn:
      return kernels::RotaryScaling(kernels::RotaryScaling::Yarn{m.rope_factor, m.rope_beta_fast, m.rope_beta_slow,
                                                                 m.rope_attention_factor, length, m.rope_truncate},
                                    m.rope_theta, rotated_width(m));
    default:
      return {};
  }
}

}  // namespace

index_t rotated_width(const deck::ModelConfig& model) {
  return static_cast<index_t>(static_cast<double>(deck::attention_sizes(model).rotated) * model.partial_rotary_factor);
}

template <class T>
Rotation<T>::Rotation(const deck::ModelConfig& model, index_t positions, Device& device, Arena& arena)
    : pairs_{.head_dim = model.head_dim, .interleaved = model.rope_interleaved} {
  const index_t width = rotated_width(model);
  cosine_ = arena.take<M>(MemoryKind::workspace, positions, width / 2);
  sine_ = arena.take<M>(MemoryKind::workspace, positions, width / 2);
  if (arena.is_planning()) return;
  const double theta = model.rope_type == deck::RopeType::dynamic
                           ? kernels::dynamic_theta(model.rope_theta, model.rope_factor,
                                                    static_cast<double>(model.original_max_position_embeddings),
                                                    static_cast<double>(positions), width)
                           : model.rope_theta;
  kernels::rotary_tables<M>(device, theta, cosine_, sine_, scaling_of(model, positions));
}

template <class T>
void Rotation<T>::forward(Device& device, const MatrixRef<T>& x, Vector<const std::int32_t> positions) const {
  if (cosine_.extent(0) > 0) kernels::rotary_forward<T>(device, x, positions, cosine_, sine_, pairs_);
}

template <class T>
void Rotation<T>::forward_with_bias(Device& device, const MatrixRef<T>& x, index_t rotated, Vector<const M> bias,
                                    Vector<const std::int32_t> positions) const {
  if (bias.extent(0) == 0) return forward(device, x.column_block(0, rotated), positions);
  if (cosine_.extent(0) == 0) return kernels::bias_add<T>(device, x, bias);
  kernels::bias_rotary_forward<T>(device, x, rotated, bias, positions, cosine_, sine_, pairs_);
}

template <class T>
void Rotation<T>::backward(Device& device, const MatrixRef<T>& dx, Vector<const std::int32_t> positions) const {
  if (cosine_.extent(0) > 0) kernels::rotary_backward<T>(device, dx, positions, cosine_, sine_, pairs_);
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
