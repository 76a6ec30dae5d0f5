#include "nanotron/kernels/optim/adamw.hpp"

#include <cmath>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {

template <class M>
void adamw(Device& device, Vector<M> p, Vector<const M> g, Vector<M> m, Vector<M> v,
           const AdamwStep& step) {
  const KernelRegion kernel(device, "adamw", reads(p, g, m, v), writes(p, m, v));
  NANOTRON_REQUIRE(step.step >= 1 && g.extent(0) == p.extent(0) && m.extent(0) == p.extent(0) &&
                       v.extent(0) == p.extent(0),
                   "adamw: {} parameters, {} gradients, step {}", p.extent(0), g.extent(0),
                   step.step);
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
        first[i] = m1;
        second[i] = v1;
        parameter[i] = kept - rate * (m1 / (std::sqrt(v1) / root2 + eps));
      });
}

template void adamw<double>(Device&, Vector<double>, Vector<const double>, Vector<double>,
                            Vector<double>, const AdamwStep&);
template void adamw<float>(Device&, Vector<float>, Vector<const float>, Vector<float>,
                           Vector<float>, const AdamwStep&);

}  // namespace nanotron::kernels
