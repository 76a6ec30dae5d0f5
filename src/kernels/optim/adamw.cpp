#include "nanotron/kernels/optim/adamw.hpp"

#include <cmath>

#include "kernels/optim/stored_copy.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {
namespace {

template <class M, class Store>
void run(Device& device, Vector<M> p, Vector<const M> g, Vector<M> m, Vector<M> v, const AdamwStep& step,
         const Store& store) {
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
  const M clip = static_cast<M>(step.gradient_scale);
  M* const parameter = p.data();
  const M* const gradient = g.data();
  M* const first = m.data();
  M* const second = v.data();
  for_each_element(
      device, "adamw", static_cast<index_t>(p.extent(0)), KOKKOS_LAMBDA(const index_t i) {
        const M grad = clip * gradient[i];
        const M kept = parameter[i] * keep;
        const M m1 = beta1 * first[i] + rest1 * grad;
        const M v1 = beta2 * second[i] + rest2 * (grad * grad);
        const M updated = kept - rate * (m1 / (std::sqrt(v1) / root2 + eps));
        first[i] = m1;
        second[i] = v1;
        parameter[i] = updated;
        store(i, updated);
      });
}

}  // namespace

template <class M>
void adamw(Device& device, Vector<M> p, Vector<const M> g, Vector<M> m, Vector<M> v, const AdamwStep& step,
           Vector<bf16> copy) {
  const KernelRegion kernel(device, "adamw", reads(p, g, m, v), writes(p, m, v, copy));
  NANOTRON_REQUIRE(
      step.step >= 1 && g.extent(0) == p.extent(0) && m.extent(0) == p.extent(0) && v.extent(0) == p.extent(0),
      "adamw: {} parameters, {} gradients, step {}", p.extent(0), g.extent(0), step.step);
  with_copy(copy, p.extent(0), [&](const auto& store) { run<M>(device, p, g, m, v, step, store); });
}

#define NANOTRON_INSTANTIATE(M) \
  template void adamw<M>(Device&, Vector<M>, Vector<const M>, Vector<M>, Vector<M>, const AdamwStep&, Vector<bf16>);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
