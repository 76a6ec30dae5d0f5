#include "nanotron/kernels/reduction/exact_sum.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "nanotron/kernels/loop/loop.hpp"

// (x + 1.5 * 2^52 q) - 1.5 * 2^52 q is x rounded to a multiple of q. Within a piece, multiples up to 2^30 q are added
// exactly as doubles; sums of pieces are added as integers.

namespace nanotron::kernels {
namespace {

constexpr int bits = 30;              // of a term per quantum
constexpr index_t piece = 16384;      // elements: 2^14 terms of up to 2^30 quanta stay below 2^53 quanta
constexpr int least_exponent = -900;  // min, of the largest term: keeps the quanta normal numbers

constexpr double shift_of(double quantum) { return 1.5 * 0x1p52 * quantum; }

// x^power + addend, rounded once; power is 1 or 2.
template <int power>
NANOTRON_FUNCTION double plus(double x, double addend) {
  return power == 1 ? x + addend : std::fma(x, x, addend);
}

template <int power, class X>
ExactParts sum_of_powers(Device& device, Vector<const X> x, const Quanta& q) {
  const X* const data = x.data();
  const auto n = static_cast<index_t>(x.extent(0));
  const double coarse = shift_of(q.coarse), fine = shift_of(q.fine), inverse_coarse = 1 / q.coarse,
               inverse_fine = 1 / q.fine;
  // A piece stays in cache between its two sums.
  return sum_of_rows<ExactParts>(
      device, "exact_sum", (n + piece - 1) / piece, KOKKOS_LAMBDA(const Row& row, const index_t at) {
        const X* const part = data + at * piece;
        const index_t left = n - at * piece, count = left < piece ? left : piece;
        const double multiples = row.template sum<double>(
            count, [=](const index_t i) { return plus<power>(static_cast<double>(part[i]), coarse) - coarse; });
        const double rests = row.template sum<double>(count, [=](const index_t i) {
          const double term = static_cast<double>(part[i]);
          const double rest = plus<power>(term, -(plus<power>(term, coarse) - coarse));
          return (rest + fine) - fine;
        });
        return ExactParts{static_cast<std::int64_t>(inverse_coarse * multiples),
                          static_cast<std::int64_t>(inverse_fine * rests)};
      });
}

}  // namespace

// With largest_term < 2^e: coarse = 2^(e - 30), fine = 2^(e - 60).
Quanta::Quanta(double largest_term) {
  int exponent = 0;
  std::frexp(largest_term, &exponent);
  exponent = std::max(exponent, least_exponent);
  coarse = std::ldexp(1.0, exponent - bits);
  fine = std::ldexp(1.0, exponent - 2 * bits);
}

double value(const ExactParts& parts, const Quanta& quanta) {
  return std::fma(static_cast<double>(parts.coarse), quanta.coarse, static_cast<double>(parts.fine) * quanta.fine);
}

template <class M>
double largest_magnitude(Device& device, Vector<const M> x) {
  const KernelRegion kernel(device, "largest_magnitude", reads(x), writes());
  if (device.is_planning()) {  // any finite one
    device.launch_planned();
    device.wait_planned();
    return 1.0;
  }
  const M* const data = x.data();
  const auto n = static_cast<index_t>(x.extent(0));
  constexpr M infinite = std::numeric_limits<M>::infinity(), finite = std::numeric_limits<M>::max();
  M result = 0;
  if constexpr (on_host) {
    const auto of_piece = [=](const index_t i, M& largest) {
      const M* const part = data + i * piece;
      const M here = HostRow{}.max<M>(std::min(piece, n - i * piece), M(0), [=](const index_t j) {
        const M magnitude = std::abs(part[j]);
        return magnitude <= finite ? magnitude : infinite;
      });
      if (largest < here) largest = here;
    };
    Kokkos::parallel_reduce(kept_label<decltype(of_piece)>("largest_magnitude"),
                            RangePolicy(device.exec(), 0, (n + piece - 1) / piece), of_piece, Kokkos::Max<M>(result));
  } else {
    Kokkos::parallel_reduce(
        "largest_magnitude", RangePolicy(device.exec(), 0, n),
        KOKKOS_LAMBDA(const index_t i, M& largest) {
          const M magnitude = std::abs(data[i]);
          const M here = magnitude <= finite ? magnitude : infinite;
          if (largest < here) largest = here;
        },
        Kokkos::Max<M>(result));
  }
  return std::max(0.0, static_cast<double>(result));
}

template <class M>
ExactParts sum_of_squares(Device& device, Vector<const M> x, const Quanta& quanta) {
  const KernelRegion kernel(device, "sum_of_squares", reads(x), writes());
  return sum_of_powers<2, M>(device, x, quanta);
}

ExactParts sum(Device& device, Vector<const double> x, const Quanta& quanta) {
  const KernelRegion kernel(device, "exact_sum", reads(x), writes());
  return sum_of_powers<1, double>(device, x, quanta);
}

template double largest_magnitude<double>(Device&, Vector<const double>);
template double largest_magnitude<float>(Device&, Vector<const float>);
template ExactParts sum_of_squares<double>(Device&, Vector<const double>, const Quanta&);
template ExactParts sum_of_squares<float>(Device&, Vector<const float>, const Quanta&);

}  // namespace nanotron::kernels
