#pragma once

// n neighbouring elements of a row in registers, of master type M. On a GPU they are loaded and stored 16 bytes at a
// time where their address is a multiple of 16; on the host n = 1, and the compiler vectorises the loop over the row.
//
//   row.template for_each_chunk<T>(columns, [=](const index_t c, const auto width) {
//     const auto x = load(source + c, width);
//     store(target + c, width, [&](const int k) { return 2 * x[k]; });
//   });

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

inline constexpr bool on_host = std::is_same_v<MemorySpace, Kokkos::HostSpace>;

template <int n>
using Width = std::integral_constant<int, n>;

/// Elements of T in a chunk.
template <class T>
inline constexpr int chunk_width = on_host ? 1 : static_cast<int>(16 / sizeof(T));

/// Chunks of T that cover n elements: whole ones, then single elements.
template <class T>
NANOTRON_FUNCTION index_t chunk_count(index_t n) {
  return n / chunk_width<T> + n % chunk_width<T>;
}
/// f(c, Width) for chunk i of them.
template <class T, class F>
NANOTRON_FUNCTION void at_chunk(index_t n, index_t i, F&& f) {
  const index_t whole = n / chunk_width<T>;
  if (i < whole) {
    f(i * chunk_width<T>, Width<chunk_width<T>>{});
  } else {
    f(whole * (chunk_width<T> - 1) + i, Width<1>{});
  }
}

template <class M, int n>
struct Chunk {
  M at[n];
  NANOTRON_FUNCTION M operator[](int k) const { return at[k]; }
  NANOTRON_FUNCTION void operator+=(const Chunk& more) {
    for (int k = 0; k < n; ++k) at[k] += more[k];
  }
};

namespace chunk_detail {

// 16 bytes.
struct alignas(16) Words {
  std::uint32_t a, b, c, d;
};
NANOTRON_FUNCTION inline bool is_aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

// n elements between memory and registers.
template <int n, class T>
NANOTRON_FUNCTION void copy_in(T (&to)[n], const T* from) {
  constexpr int in_word = 16 / sizeof(T);
  if constexpr (n >= in_word) {
    if (is_aligned(from)) {
      for (int k = 0; k < n; k += in_word) {
        const Words words = *reinterpret_cast<const Words*>(from + k);
        std::memcpy(to + k, &words, sizeof words);
      }
      return;
    }
  }
  for (int k = 0; k < n; ++k) to[k] = from[k];
}
template <int n, class T>
NANOTRON_FUNCTION void copy_out(T* to, const T (&from)[n]) {
  constexpr int in_word = 16 / sizeof(T);
  if constexpr (n >= in_word) {
    if (is_aligned(to)) {
      for (int k = 0; k < n; k += in_word) {
        Words words;
        std::memcpy(&words, from + k, sizeof words);
        auto* const target = reinterpret_cast<Words*>(to + k);
#if defined(__CUDA_ARCH__)  // nvcc splits some of these stores
        asm volatile("st.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(target), "r"(words.a), "r"(words.b), "r"(words.c),
                     "r"(words.d)
                     : "memory");
#else
        *target = words;
#endif
      }
      return;
    }
  }
  for (int k = 0; k < n; ++k) to[k] = from[k];
}

}  // namespace chunk_detail

/// from[0 .. n), widened to M.
template <class T, int n>
NANOTRON_FUNCTION Chunk<master_t<T>, n> load(const T* from, Width<n>) {
  T elements[n];
  chunk_detail::copy_in<n>(elements, from);
  Chunk<master_t<T>, n> chunk;
  for (int k = 0; k < n; ++k) chunk.at[k] = static_cast<master_t<T>>(elements[k]);
  return chunk;
}

/// to[0 .. n) <- from[0 .. n), the same bits.
template <class T, int n>
NANOTRON_FUNCTION void copy(T* to, const T* from, Width<n>) {
  T elements[n];
  chunk_detail::copy_in<n>(elements, from);
  chunk_detail::copy_out<n>(to, elements);
}

/// f(k) for k < n.
template <int n, class F>
NANOTRON_FUNCTION auto chunk(Width<n>, const F& f) {
  Chunk<decltype(f(0)), n> values;
  for (int k = 0; k < n; ++k) values.at[k] = f(k);
  return values;
}

/// Sum of f(k) over k < n, in order.
template <int n, class F>
NANOTRON_FUNCTION auto sum(Width<n>, const F& f) {
  auto total = f(0);
  for (int k = 1; k < n; ++k) total += f(k);
  return total;
}

template <int n, class F>
NANOTRON_FUNCTION auto max(Width<n>, const F& f) {
  auto most = f(0);
  for (int k = 1; k < n; ++k) most = most < f(k) ? f(k) : most;
  return most;
}

/// to[k] <- f(k), rounded to T, for k < n. f may read what was loaded from `to`, not `to` itself.
template <class T, int n, class F>
NANOTRON_FUNCTION void store(T* to, Width<n>, const F& f) {
  T elements[n];
  for (int k = 0; k < n; ++k) elements[k] = static_cast<T>(f(k));
  chunk_detail::copy_out<n>(to, elements);
}

}  // namespace nanotron::kernels
