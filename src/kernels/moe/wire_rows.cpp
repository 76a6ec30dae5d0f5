#include "nanotron/kernels/moe/wire_rows.hpp"

#include <cmath>

#include "nanotron/base/error.hpp"
#include "nanotron/base/fp8.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {
namespace {

constexpr int max_exponent = 126;  // 2^e and 2^-e are normal floats

// e of the block: amax = f 2^a with f in [0.5, 1); the largest code is 0.875 2^top.
NANOTRON_FUNCTION int exponent_for(float amax) {
  if (!(amax > 0.0f) || !(amax <= 3.402823466e38f)) return 0;
  int above = 0;
  const float fraction = frexpf(amax, &above);
  const int e = e4m3::top - above - (fraction > 0.875f ? 1 : 0);
  return e > max_exponent ? max_exponent : e < -max_exponent ? -max_exponent : e;
}

template <class T>
NANOTRON_FUNCTION void pack_bf16(const Row& row, const T* from, index_t columns, std::uint64_t* to) {
  auto* const values = reinterpret_cast<bf16*>(to);
  row.for_each((columns + 3) / 4 * 4, [=](const index_t c) {
    values[c] = static_cast<bf16>(c < columns ? static_cast<float>(from[c]) : 0.0f);
  });
}

// A block by one thread. What pads the words is zero: equal rows give equal messages.
template <class T>
NANOTRON_FUNCTION void pack_fp8(const Row& row, const T* from, index_t columns, std::uint64_t* to) {
  auto* const codes = reinterpret_cast<std::uint8_t*>(to);
  auto* const scales = reinterpret_cast<float*>(to + (columns + 7) / 8);
  row.for_each((columns + wire_block - 1) / wire_block, [=](const index_t b) {
    const index_t begin = b * wire_block, end = begin + wire_block < columns ? begin + wire_block : columns;
    float amax = 0.0f;
    for (index_t c = begin; c < end; ++c) {
      const float x = fabsf(static_cast<float>(from[c]));
      amax = x > amax || x != x ? x : amax;
    }
    const float scale = ldexpf(1.0f, -exponent_for(amax)), factor = 1.0f / scale;
    for (index_t c = begin; c < end; ++c) codes[c] = e4m3::code_of(static_cast<float>(from[c]) * factor);
    scales[b] = scale;
    if (end < columns) return;
    for (index_t c = columns; c % 8 != 0; ++c) codes[c] = 0;
    if (b % 2 == 0) scales[b + 1] = 0.0f;
  });
}

template <class T>
NANOTRON_FUNCTION void unpack_fp8(const Row& row, const std::uint64_t* from, index_t columns, T* to) {
  const auto* const codes = reinterpret_cast<const std::uint8_t*>(from);
  const auto* const scales = reinterpret_cast<const float*>(from + (columns + 7) / 8);
  row.for_each(columns, [=](const index_t c) {
    to[c] = static_cast<T>(static_cast<float>(e4m3::from_bits(codes[c])) * scales[c / wire_block]);
  });
}

void require_words(deck::ExpertRowType type, std::size_t columns, std::size_t words) {
  NANOTRON_REQUIRE(static_cast<index_t>(words) == wire_words(type, static_cast<index_t>(columns)),
                   "{} words of a row of {} columns", words, columns);
}

}  // namespace

template <class T>
void pack_rows(Device& device, deck::ExpertRowType type, Matrix<const T> rows, Matrix<std::uint64_t> words,
               Vector<const std::int64_t> places) {
  const auto columns = static_cast<index_t>(rows.extent(1)), width = static_cast<index_t>(words.extent(1));
  const auto n = static_cast<index_t>(words.extent(0));
  const KernelRegion kernel(device, "pack_rows", reads(Matrix<const T>(rows.data(), n, columns), places),
                            writes(words));
  require_words(type, rows.extent(1), words.extent(1));
  const T* const x = rows.data();
  std::uint64_t* const to = words.data();
  const std::int64_t* const place = places.extent(0) > 0 ? places.data() : nullptr;
  if (type == deck::ExpertRowType::bf16) {
    for_each_row(
        device, "pack_rows", n, KOKKOS_LAMBDA(const Row& row, const index_t r) {
          pack_bf16(row, x + (place == nullptr ? r : place[r]) * columns, columns, to + r * width);
        });
    return;
  }
  for_each_row(
      device, "pack_rows", n, KOKKOS_LAMBDA(const Row& row, const index_t r) {
        pack_fp8(row, x + (place == nullptr ? r : place[r]) * columns, columns, to + r * width);
      });
}

template <class T>
void unpack_rows(Device& device, deck::ExpertRowType type, Matrix<const std::uint64_t> words, Matrix<T> rows,
                 Vector<const std::int64_t> places) {
  const auto columns = static_cast<index_t>(rows.extent(1)), width = static_cast<index_t>(words.extent(1));
  const auto n = static_cast<index_t>(words.extent(0));
  const KernelRegion kernel(device, "unpack_rows", reads(words, places), writes(Matrix<T>(rows.data(), n, columns)));
  require_words(type, rows.extent(1), words.extent(1));
  const std::uint64_t* const from = words.data();
  T* const x = rows.data();
  const std::int64_t* const place = places.extent(0) > 0 ? places.data() : nullptr;
  if (type == deck::ExpertRowType::bf16) {
    for_each_row(
        device, "unpack_rows", n, KOKKOS_LAMBDA(const Row& row, const index_t r) {
          const auto* const values = reinterpret_cast<const bf16*>(from + r * width);
          T* const y = x + (place == nullptr ? r : place[r]) * columns;
          row.for_each(columns, [=](const index_t c) { y[c] = static_cast<T>(static_cast<float>(values[c])); });
        });
    return;
  }
  for_each_row(
      device, "unpack_rows", n, KOKKOS_LAMBDA(const Row& row, const index_t r) {
        unpack_fp8(row, from + r * width, columns, x + (place == nullptr ? r : place[r]) * columns);
      });
}

#define NANOTRON_INSTANTIATE(T)                                                                      \
  template void pack_rows<T>(Device&, deck::ExpertRowType, Matrix<const T>, Matrix<std::uint64_t>,   \
                             Vector<const std::int64_t>);                                            \
  template void unpack_rows<T>(Device&, deck::ExpertRowType, Matrix<const std::uint64_t>, Matrix<T>, \
                               Vector<const std::int64_t>);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
