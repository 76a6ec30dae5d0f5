#include "nanotron/kernels/reduction/exact_sum.hpp"

#include <cmath>
#include <cstring>
#include <limits>

#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {
namespace {

constexpr index_t piece = 16384;  // elements: stays in cache between its passes; its sums of digits are exact doubles

// 2^e of a normal number.
NANOTRON_FUNCTION inline double power_of_two(std::int64_t e) {
  const auto bits = static_cast<std::uint64_t>(e + 1023) << 52;
  double x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// The place k of the first digit: x < 2^(28 k).
NANOTRON_FUNCTION inline std::int64_t place_of(double x) {
  std::uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const auto exponent = static_cast<std::int64_t>(bits >> 52 & 0x7ff) - 1022;  // x < 2^exponent
  if (exponent == 1025) return ExactSum::not_finite;
  const std::int64_t place = (exponent + ExactSum::width * 40 + ExactSum::width - 1) / ExactSum::width - 40;
  return place < ExactSum::lowest ? ExactSum::lowest : place;
}

using Digits = Chunk<double, ExactSum::places>;

// Quanta of the places from `top`, and their inverses.
struct Places {
  double quantum[ExactSum::places], inverse[ExactSum::places];
  NANOTRON_FUNCTION explicit Places(std::int64_t top) {
    for (int i = 0; i < ExactSum::places; ++i) {
      quantum[i] = power_of_two(ExactSum::width * (top - 1 - i));
      inverse[i] = power_of_two(-ExactSum::width * (top - 1 - i));
    }
  }
  NANOTRON_FUNCTION Digits digits(double x) const {
    Digits all;
    for (int i = 0; i < ExactSum::places; ++i) {
      all.at[i] = std::trunc(x * inverse[i]);
      x -= all[i] * quantum[i];
    }
    return all;
  }
};

template <int power, class X>
NANOTRON_FUNCTION double term(X x) {
  const auto wide = static_cast<double>(x);
  return power == 1 ? wide : wide * wide;
}

template <int power, class X>
void sum_of_powers(Device& device, Vector<const X> x, Vector<ExactSum> result) {
  const X* const data = x.data();
  const auto n = static_cast<index_t>(x.extent(0));
  constexpr X infinite = std::numeric_limits<X>::infinity(), finite = std::numeric_limits<X>::max();
  sum_of_rows<ExactSum>(
      device, "exact_sum", (n + piece - 1) / piece,
      KOKKOS_LAMBDA(const Row& row, const index_t at) {
        const X* const part = data + at * piece;
        const index_t left = n - at * piece, count = left < piece ? left : piece;
        const X largest = row.template max<X>(count, X(0), [=](const index_t i) {
          const X magnitude = part[i] < X(0) ? -part[i] : part[i];
          return magnitude <= finite ? magnitude : infinite;  // NaN too
        });
        ExactSum sum;
        sum.top = place_of(term<power>(largest));
        if (sum.top == ExactSum::not_finite) return sum;
        const Places places(sum.top);
        const Digits sums = row.template sums<double, ExactSum::places>(
            count, [=](const index_t i) { return places.digits(term<power>(part[i])); });
        for (int i = 0; i < ExactSum::places; ++i) sum.digits[i] = static_cast<std::int64_t>(sums[i]);
        return sum;
      },
      result);
}

}  // namespace

template <class M>
void sum_of_squares(Device& device, Vector<const M> x, Vector<ExactSum> result) {
  const KernelRegion kernel(device, "sum_of_squares", reads(x), writes());
  sum_of_powers<2, M>(device, x, result);
}

void sum(Device& device, Vector<const double> x, Vector<ExactSum> result) {
  const KernelRegion kernel(device, "exact_sum", reads(x), writes());
  sum_of_powers<1, double>(device, x, result);
}

void sum(Device& device, Vector<const ExactSum> sums, Vector<ExactSum> result) {
  const KernelRegion kernel(device, "exact_sum", reads(sums), writes());
  const ExactSum* const part = sums.data();
  const auto parts = static_cast<index_t>(sums.extent(0));
  ExactSum* const total = result.data();
  for_each_element(
      device, "add_exact_sums", 1, KOKKOS_LAMBDA(const index_t) {
        ExactSum all;
        for (index_t i = 0; i < parts; ++i) all += part[i];
        *total = all;
      });
}

void top_place(Device& device, Vector<const ExactSum> sum, Vector<std::int64_t> place) {
  const KernelRegion kernel(device, "exact_sum", reads(sum), writes());
  const ExactSum* const from = sum.data();
  std::int64_t* const to = place.data();
  for_each_element(
      device, "top_place", 1, KOKKOS_LAMBDA(const index_t) { *to = from->top; });
}

void at_place(Device& device, Vector<const std::int64_t> place, Vector<ExactSum> sum) {
  const KernelRegion kernel(device, "exact_sum", reads(sum), writes());
  const std::int64_t* const from = place.data();
  ExactSum* const to = sum.data();
  for_each_element(
      device, "at_place", 1, KOKKOS_LAMBDA(const index_t) { *to = to->below(*from); });
}

#define NANOTRON_INSTANTIATE(M) template void sum_of_squares<M>(Device&, Vector<const M>, Vector<ExactSum>);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
