#pragma once

// AdamW (Loshchilov and Hutter, 2019) in the order of operations of PyTorch:
//
//   g' = gradient_scale g
//   p *= 1 - learning_rate weight_decay
//   m = beta1 m + (1 - beta1) g'           v = beta2 v + (1 - beta2) g'^2
//   p -= learning_rate / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps)

#include <cstdint>

#include "nanotron/kernels/optim/update_scalars.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/shard.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

struct AdamwStep {
  double learning_rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0;
  std::int64_t step = 1;  // of this update, from 1
};

/// p, m, v (n) are updated if scalars (1) allow it, g (n) is read. copy (n, or empty): p rounded to bf16. M is double
/// or float; scalars are computed in fp64.
template <class M>
void adamw(Device& device, Vector<M> p, Vector<const M> g, Vector<M> m, Vector<M> v, const AdamwStep& step,
           Vector<const UpdateScalars> scalars, Vector<bf16> copy = {});

/// The random bits of stochastic rounding: a function of seed, stream, update and element of the logical tensor.
/// Element i of a vector is its element index(begin + i).
struct RoundingNoise {
  std::uint64_t seed = 0;
  std::uint32_t stream = 0;
  LogicalIndex index{};
  index_t begin = 0;
};

/// The same with moments in bf16. p is updated with m and v in fp32, which are then rounded stochastically (Forsythe
/// 1959; Zamirai et al. 2021, "Revisiting BFloat16 training"): with x between neighbours a < x < b of bf16, to b with
/// probability (x - a) / (b - a), to 2^-16; exactly representable values stay.
void adamw_bf16_moments(Device& device, Vector<float> p, Vector<const float> g, Vector<bf16> m, Vector<bf16> v,
                        const AdamwStep& step, Vector<const UpdateScalars> scalars, const RoundingNoise& noise,
                        Vector<bf16> copy = {});

}  // namespace nanotron::kernels
