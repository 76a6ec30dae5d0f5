#include "nanotron/kernels/optim/adamw.hpp"

#include <cmath>

#include "kernels/optim/stored_copy.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/random.hpp"
#include "nanotron/kernels/loop/chunk.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {

// Where an update loads its moments from, and how it stores them. Private to kernels/optim.

template <class M>
struct MasterMoments {
  M *first, *second;

  template <int n>
  NANOTRON_FUNCTION void store_both(index_t i, Width<n> width, const Chunk<M, n>& m, const Chunk<M, n>& v) const {
    store(first + i, width, [&](const int k) { return m[k]; });
    store(second + i, width, [&](const int k) { return v[k]; });
  }
};

/// x rounded to bf16: up in size where the low half of its bits and 16 random bits add up to more than they hold.
NANOTRON_FUNCTION inline bf16 rounded_stochastically(float x, std::uint32_t random16) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const bool is_finite = (bits & 0x7f800000u) != 0x7f800000u;
  return is_finite ? bf16::from_bits(static_cast<std::uint16_t>((bits + random16) >> 16)) : bf16(x);
}

struct Bf16Moments {
  bf16 *first, *second;
  RoundingNoise noise;
  std::uint32_t step;

  template <int n>
  NANOTRON_FUNCTION void store_both(index_t i, Width<n> width, const Chunk<float, n>& m,
                                    const Chunk<float, n>& v) const {
    const Chunk<std::uint32_t, n> bits = random(i, width);
    store(first + i, width, [&](const int k) { return rounded_stochastically(m[k], bits[k] & 0xffffu); });
    store(second + i, width, [&](const int k) { return rounded_stochastically(v[k], bits[k] >> 16); });
  }

 private:
  // 32 bits an element, of the 128 of four neighbours in the logical tensor: one call of Philox for a chunk of these
  // four, else one for each element.
  NANOTRON_FUNCTION PhiloxCounter four(index_t index) const {
    return random_bits(noise.seed, noise.stream, static_cast<std::uint64_t>(index / 4), step);
  }
  template <int n>
  NANOTRON_FUNCTION Chunk<std::uint32_t, n> random(index_t i, Width<n>) const {
    const index_t begin = noise.begin + i;
    Chunk<std::uint32_t, n> bits;
    if constexpr (n == 4) {
      const index_t index = noise.index(begin);
      if (index % 4 == 0 && noise.index(begin + 3) == index + 3) {
        const PhiloxCounter all = four(index);
        for (int k = 0; k < n; ++k) bits.at[k] = all.word[k];
        return bits;
      }
    }
    for (int k = 0; k < n; ++k) {
      const index_t index = noise.index(begin + k);
      const PhiloxCounter all = four(index);
      const index_t word = index % 4;
      bits.at[k] = word == 0 ? all.word[0] : word == 1 ? all.word[1] : word == 2 ? all.word[2] : all.word[3];
    }
    return bits;
  }
};

namespace {

template <class M, class Moments, class Store>
void run(Device& device, Vector<M> p, Vector<const M> g, const Moments& moments, const AdamwStep& step,
         Vector<const UpdateScalars> scalars, const Store& copy) {
  const double correction1 = 1.0 - std::pow(step.beta1, static_cast<double>(step.step));
  const double correction2 = 1.0 - std::pow(step.beta2, static_cast<double>(step.step));
  const M keep = static_cast<M>(1.0 - step.learning_rate * step.weight_decay);
  const M beta1 = static_cast<M>(step.beta1);
  const M beta2 = static_cast<M>(step.beta2);
  const M rest1 = static_cast<M>(1.0 - step.beta1);
  const M rest2 = static_cast<M>(1.0 - step.beta2);
  const M root2 = static_cast<M>(std::sqrt(correction2));
  const M eps = static_cast<M>(step.eps);
  const M rate = static_cast<M>(step.learning_rate / correction1);
  M* const parameter = p.data();
  const M* const gradient = g.data();
  const UpdateScalars* const decided = scalars.data();
  for_each_piece<M>(
      device, "adamw", static_cast<index_t>(p.extent(0)),
      KOKKOS_LAMBDA(const Row& row, const index_t begin, const index_t count) {
        if (!decided->updates) return;
        const M clip = static_cast<M>(decided->gradient_scale);
        const Store stored = copy;
        const Moments held = moments;
        row.template for_each_chunk<M>(count, [=](const index_t at, const auto n) {
          const index_t i = begin + at;
          const auto x = load(parameter + i, n), g = load(gradient + i, n);
          const auto m0 = load(held.first + i, n), v0 = load(held.second + i, n);
          const auto grad = chunk(n, [&](const int k) { return clip * g[k]; });
          const auto kept = chunk(n, [&](const int k) { return x[k] * keep; });
          const auto m1 = chunk(n, [&](const int k) { return beta1 * m0[k] + rest1 * grad[k]; });
          const auto v1 = chunk(n, [&](const int k) { return beta2 * v0[k] + rest2 * (grad[k] * grad[k]); });
          const auto updated =
              chunk(n, [&](const int k) { return kept[k] - rate * (m1[k] / (std::sqrt(v1[k]) / root2 + eps)); });
          held.store_both(i, n, m1, v1);
          store(parameter + i, n, [&](const int k) { return updated[k]; });
          stored(i, n, updated);
        });
      });
}

template <class M, class S>
void require_equal_sizes(const Vector<M>& p, const Vector<const M>& g, const Vector<S>& m, const Vector<S>& v,
                         const AdamwStep& step) {
  NANOTRON_REQUIRE(
      step.step >= 1 && g.extent(0) == p.extent(0) && m.extent(0) == p.extent(0) && v.extent(0) == p.extent(0),
      "adamw: {} parameters, {} gradients, step {}", p.extent(0), g.extent(0), step.step);
}

}  // namespace

template <class M>
void adamw(Device& device, Vector<M> p, Vector<const M> g, Vector<M> m, Vector<M> v, const AdamwStep& step,
           Vector<const UpdateScalars> scalars, Vector<bf16> copy) {
  const KernelRegion kernel(device, "adamw", reads(p, g, m, v), writes(p, m, v, copy));
  require_equal_sizes(p, g, m, v, step);
  const MasterMoments<M> moments{m.data(), v.data()};
  with_copy(copy, p.extent(0), [&](const auto& store) { run<M>(device, p, g, moments, step, scalars, store); });
}

void adamw_bf16_moments(Device& device, Vector<float> p, Vector<const float> g, Vector<bf16> m, Vector<bf16> v,
                        const AdamwStep& step, Vector<const UpdateScalars> scalars, const RoundingNoise& noise,
                        Vector<bf16> copy) {
  const KernelRegion kernel(device, "adamw", reads(p, g, m, v), writes(p, m, v, copy));
  require_equal_sizes(p, g, m, v, step);
  const Bf16Moments moments{m.data(), v.data(), noise, static_cast<std::uint32_t>(step.step)};
  with_copy(copy, p.extent(0), [&](const auto& store) { run<float>(device, p, g, moments, step, scalars, store); });
}

#define NANOTRON_INSTANTIATE(M)                                                                       \
  template void adamw<M>(Device&, Vector<M>, Vector<const M>, Vector<M>, Vector<M>, const AdamwStep&, \
                         Vector<const UpdateScalars>, Vector<bf16>);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
