#pragma once

// A GEMM of the emulated rocBLAS and hipBLASLt. Column-major, like theirs.

#include <fmt/format.h>
#include <hipblaslt/hipblaslt.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "emulation/device_memory.hpp"
#include "emulation/gemms.hpp"
#include "emulation/scheduler.hpp"
#include "nanotron/base/fp8.hpp"

namespace nanotron::emulation {

inline bool is_fp8(hipDataType type) { return type == HIP_R_8F_E4M3_FNUZ || type == HIP_R_8F_E5M2_FNUZ; }
inline std::size_t size_of(hipDataType type) {
  return type == HIP_R_64F ? 8 : type == HIP_R_32F ? 4 : is_fp8(type) ? 1 : 2;
}

// FNUZ (Noune et al. 2022): the exponent's bias is 2^(bits - 1); 0x80 is NaN.
inline double value_of_fnuz(std::uint8_t code, int mantissa) {
  if (code == 0x80) return std::numeric_limits<double>::quiet_NaN();
  const int bias = 1 << (6 - mantissa), exponent = (code & 0x7f) >> mantissa, rest = code & ((1 << mantissa) - 1);
  const int significand = exponent == 0 ? rest : rest + (1 << mantissa);
  return (code >= 0x80 ? -1 : 1) * std::ldexp(significand, std::max(exponent, 1) - bias - mantissa);
}

inline double load(hipDataType type, const void* data, std::size_t i) {
  if (type == HIP_R_64F) return static_cast<const double*>(data)[i];
  if (type == HIP_R_32F) return static_cast<const float*>(data)[i];
  if (is_fp8(type)) return value_of_fnuz(static_cast<const std::uint8_t*>(data)[i], type == HIP_R_8F_E4M3_FNUZ ? 3 : 2);
  return static_cast<float>(static_cast<const bf16*>(data)[i]);
}

inline void store(hipDataType type, void* data, std::size_t i, double value) {
  if (type == HIP_R_64F) {
    static_cast<double*>(data)[i] = value;
  } else if (type == HIP_R_32F) {
    static_cast<float*>(data)[i] = static_cast<float>(value);
  } else {
    static_cast<bf16*>(data)[i] = bf16(static_cast<float>(value));
  }
}

struct Operand {
  hipDataType type;
  std::int64_t rows, columns, leading;

  void require(const void* data, const char* name) const {
    if (leading < rows) fault(fmt::format("a GEMM: {} of {} rows is {} apart", name, rows, leading));
    require_device(data, static_cast<std::size_t>((columns - 1) * leading + rows) * size_of(type), name);
  }
};

// D (m, n) <- alpha op(A) op(B) + beta C, sums in fp64.
struct Gemm {
  bool transposes_a, transposes_b;
  std::int64_t m, n, k;
  double alpha, beta;
  Operand of_a, of_b, of_c, of_d;
  const float *scale_a = nullptr, *scale_b = nullptr;  // of FP8 operands; null: 1

  void operator()(const void* a, const void* b, const void* c, void* d) const {
    require(a, b, c, d);
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t i = 0; i < m; ++i) {
        double sum = 0;
        for (std::int64_t l = 0; l < k; ++l) {
          const auto at_a = static_cast<std::size_t>(transposes_a ? l + i * of_a.leading : i + l * of_a.leading);
          const auto at_b = static_cast<std::size_t>(transposes_b ? j + l * of_b.leading : l + j * of_b.leading);
          sum += load(of_a.type, a, at_a) * load(of_b.type, b, at_b);
        }
        const auto at_c = static_cast<std::size_t>(i + j * of_c.leading);
        const double added = beta == 0 ? 0 : beta * load(of_c.type, c, at_c);
        const double scale = (scale_a == nullptr ? 1.0 : *scale_a) * (scale_b == nullptr ? 1.0 : *scale_b);
        store(of_d.type, d, static_cast<std::size_t>(i + j * of_d.leading), alpha * scale * sum + added);
      }
    }
  }
  void require(const void* a, const void* b, const void* c, const void* d) const {
    of_a.require(a, "A of a GEMM");
    of_b.require(b, "B of a GEMM");
    of_c.require(c, "C of a GEMM");
    of_d.require(d, "D of a GEMM");
    for (const float* scale : {scale_a, scale_b}) {
      if (scale != nullptr) require_device(scale, sizeof *scale, "the scale of an FP8 operand");
    }
  }
};

inline bool has_odd_rows(const Gemm& gemm) {
  const auto is_odd = [](const Operand& x) { return static_cast<std::size_t>(x.leading) * size_of(x.type) % 16 != 0; };
  return gemm.of_a.type == HIP_R_16BF && (is_odd(gemm.of_a) || is_odd(gemm.of_b) || is_odd(gemm.of_d));
}

}  // namespace nanotron::emulation
