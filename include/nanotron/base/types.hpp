#pragma once

// The scalar types of the program. Free of Kokkos and MPI, so that every layer can include it.

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__CUDACC__) || defined(__HIPCC__)
#define NANOTRON_FUNCTION __host__ __device__
#else
#define NANOTRON_FUNCTION
#endif

// Before a NANOTRON_FUNCTION that calls its argument: nvcc then lets it call a function of the host, on the host.
#if defined(__CUDACC__)
#define NANOTRON_OF_ITS_CALLER _Pragma("nv_exec_check_disable")
#else
#define NANOTRON_OF_ITS_CALLER
#endif

// Defined while functions are compiled for a GPU, not for the host.
#if defined(__CUDA_ARCH__) || (defined(__HIP_DEVICE_COMPILE__) && __HIP_DEVICE_COMPILE__)
#define NANOTRON_ON_GPU
#endif

/// macro(T) for the types a model can be computed in, and for those of its master weights: explicit instantiations.
#define NANOTRON_FOR_COMPUTE_TYPES(macro) macro(double) macro(float) macro(bf16)
#define NANOTRON_FOR_MASTER_TYPES(macro) macro(double) macro(float)

namespace nanotron {

/// Extents and element offsets.
using index_t = std::int64_t;

/// The 16-bit brain float: a storage type of two bytes on every platform. Arithmetic is in float.
/// float -> bf16 rounds to nearest, ties to even; a NaN stays a (quiet) NaN, overflow gives infinity.
struct bf16 {
  std::uint16_t bits;

  bf16() = default;
  NANOTRON_FUNCTION explicit bf16(float value) : bits(round_from(value)) {}
  NANOTRON_FUNCTION operator float() const {  // NOLINT(google-explicit-constructor): exact
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
  NANOTRON_FUNCTION static bf16 from_bits(std::uint16_t raw) {
    bf16 value;
    value.bits = raw;
    return value;
  }

 private:
  // Without a branch, so that loops of conversions vectorise.
  NANOTRON_FUNCTION static std::uint16_t round_from(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    std::uint16_t rounded;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
    return rounded;
#else
    std::uint32_t u;
    std::memcpy(&u, &value, sizeof u);
    const std::uint32_t nearest = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const std::uint32_t quiet_nan = (u >> 16) | 0x40u;
    const bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;
    return static_cast<std::uint16_t>(is_nan ? quiet_nan : nearest);
#endif
  }
};
static_assert(sizeof(bf16) == 2 && std::is_trivial_v<bf16>);

/// Threads of a GPU that run in step: a warp of NVIDIA's, a wavefront of AMD's CDNA. And whether a build has the
/// kernels for tensor cores (src/kernels/mma; mma.sync): AMD's matrix cores have other instructions (MFMA).
#if defined(NANOTRON_WITH_HIP)
inline constexpr int gpu_warp_size = 64;
inline constexpr bool has_mma_kernels = false;
#else
inline constexpr int gpu_warp_size = 32;
inline constexpr bool has_mma_kernels = true;
#endif

/// What a model can be computed in. fp8: bf16, with FP8 operands in the GEMMs of its linear layers.
enum class ScalarType { fp64, fp32, bf16, fp8 };

template <class T>
inline constexpr ScalarType scalar_type_of = [] {
  static_assert(std::is_same_v<T, double> || std::is_same_v<T, float> || std::is_same_v<T, bf16>);
  if constexpr (std::is_same_v<T, double>) return ScalarType::fp64;
  if constexpr (std::is_same_v<T, float>) return ScalarType::fp32;
  return ScalarType::bf16;
}();

constexpr std::size_t size_of(ScalarType type) {
  return type == ScalarType::fp64 ? 8 : type == ScalarType::fp32 ? 4 : type == ScalarType::bf16 ? 2 : 1;
}

/// The name used in decks and files: "fp64", "fp32", "bf16", "fp8".
constexpr const char* name_of(ScalarType type) {
  switch (type) {
    case ScalarType::fp64:
      return "fp64";
    case ScalarType::fp32:
      return "fp32";
    case ScalarType::bf16:
      return "bf16";
    default:
      return "fp8";
  }
}

/// The type of master weights, gradients and moments of a model computed in T.
template <class T>
using master_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Calls f(std::type_identity<T>{}) with the T of weights and activations: from the deck's value to a template
/// argument.
template <class F>
decltype(auto) with_scalar_type(ScalarType type, F&& f) {
  switch (type) {
    case ScalarType::fp64:
      return std::forward<F>(f)(std::type_identity<double>{});
    case ScalarType::fp32:
      return std::forward<F>(f)(std::type_identity<float>{});
    default:
      return std::forward<F>(f)(std::type_identity<bf16>{});
  }
}

}  // namespace nanotron

// Explicit instantiation of a class template, in one line.

/// For the types of weights and activations.
#define NANOTRON_INSTANTIATE_CLASS(name) \
  template class name<double>;           \
  template class name<float>;            \
  template class name<nanotron::bf16>;

/// For the types of master weights.
#define NANOTRON_INSTANTIATE_MASTER_CLASS(name) \
  template class name<double>;                  \
  template class name<float>;
