#include "nanotron/kernels/attention/rotary.hpp"

#include <cmath>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {
namespace {

// Rotates every head by sign * angle; one row of the policy per token.
template <class T, int sign>
void rotate(Device& device, const char* label, MatrixRef<T> x, Vector<const std::int32_t> positions,
            Matrix<const master_t<T>> cosine, Matrix<const master_t<T>> sine) {
  using M = master_t<T>;
  const index_t half = static_cast<index_t>(cosine.extent(1));
  NANOTRON_REQUIRE(half > 0 && x.columns % (2 * half) == 0, "{}: {} columns, heads of {}", label,
                   x.columns, 2 * half);
  const index_t heads = x.columns / (2 * half);
  for_each_row(
      device, label, x.rows, KOKKOS_LAMBDA(const Row& row, const index_t token) {
        const index_t n = half;
        const index_t position = positions.data()[token];
        const M* const c = cosine.data() + position * n;
        const M* const s = sine.data() + position * n;
        for (index_t head = 0; head < heads; ++head) {
          T* const low = x.data + token * x.leading + head * 2 * n;
          T* const high = low + n;
          row.for_each(n, [=](const index_t i) {
            const M a = static_cast<M>(low[i]);
            const M b = static_cast<M>(high[i]);
            const M turn = M(sign) * s[i];
            low[i] = static_cast<T>(a * c[i] - b * turn);
            high[i] = static_cast<T>(b * c[i] + a * turn);
          });
        }
      });
}

}  // namespace

template <class M>
void rotary_tables(Device& device, double theta, Matrix<M> cosine, Matrix<M> sine, const RotaryScaling& scaling) {
  const KernelRegion kernel(device, "rotary_tables", reads(), writes(cosine, sine));
  const index_t half = static_cast<index_t>(cosine.extent(1));
  M* const c = cosine.data();
  M* const s = sine.data();
  const RotaryScaling scaled = scaling;
  const double magnitude = scaling.magnitude();
  for_each_element(
      device, "rotary_tables", static_cast<index_t>(cosine.extent(0)) * half,
      KOKKOS_LAMBDA(const index_t i) {
        const double exponent = -static_cast<double>(i % half) / static_cast<double>(half);
        const double angle = static_cast<double>(i / half) * scaled(std::pow(theta, exponent), i % half);
        c[i] = static_cast<M>(magnitude * std::cos(angle));
        s[i] = static_cast<M>(magnitude * std::sin(angle));
      });
}

template <class T>
void rotary_forward(Device& device, MatrixRef<T> x, Vector<const std::int32_t> positions,
                    Matrix<const master_t<T>> cosine, Matrix<const master_t<T>> sine) {
  const KernelRegion kernel(device, "rotary_forward", reads(x, positions), writes(x));
  rotate<T, 1>(device, "rotary_forward", x, positions, cosine, sine);
}

template <class T>
void rotary_backward(Device& device, MatrixRef<T> dx, Vector<const std::int32_t> positions,
                     Matrix<const master_t<T>> cosine, Matrix<const master_t<T>> sine) {
  const KernelRegion kernel(device, "rotary_backward", reads(dx, positions), writes(dx));
  rotate<T, -1>(device, "rotary_backward", dx, positions, cosine, sine);
}

template void rotary_tables<double>(Device&, double, Matrix<double>, Matrix<double>, const RotaryScaling&);
template void rotary_tables<float>(Device&, double, Matrix<float>, Matrix<float>, const RotaryScaling&);
#define NANOTRON_INSTANTIATE(T)                                                          \
  template void rotary_forward<T>(Device&, MatrixRef<T>, Vector<const std::int32_t>,     \
                                  Matrix<const master_t<T>>, Matrix<const master_t<T>>); \
  template void rotary_backward<T>(Device&, MatrixRef<T>, Vector<const std::int32_t>,    \
                                   Matrix<const master_t<T>>, Matrix<const master_t<T>>);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
