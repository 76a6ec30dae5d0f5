#pragma once
// A machine to plan for, as a namelist file of one group, &machine. Rates are those that kernels reach, not peaks.

#include <string>

#include "nanotron/base/types.hpp"

namespace nanotron::deck {

/// Of one rank: a GPU, or its share of a host. Rates of matrix products in FLOP/s.
struct Machine {
  std::string name;
  bool is_gpu = true;
  double peak_fp8 = 0.0, peak_bf16 = 0.0;  // what a fraction of the peak refers to
  double gemm_fp8 = 0.0, gemm_bf16 = 0.0, gemm_fp32 = 0.0, gemm_fp64 = 0.0;
  double attention_forward = 0.0, attention_backward = 0.0;  // of a fused kernel in bf16, masked pairs not counted
  double attention_mma = 0.0;                                // the same of the program's own, without cuDNN
  double memory = 0.0;                                       // bytes per second, read and written
  double launch = 0.0;                                       // seconds between two kernels that follow each other

  double peak(ScalarType compute) const { return compute == ScalarType::fp8 ? peak_fp8 : peak_bf16; }
  double gemm(ScalarType type) const {
    switch (type) {
      case ScalarType::fp64:
        return gemm_fp64;
      case ScalarType::fp32:
        return gemm_fp32;
      case ScalarType::bf16:
        return gemm_bf16;
      default:
        return gemm_fp8;
    }
  }
};

/// Reads the text of such a file. Error(deck_error) with every finding and its line.
Machine read_machine(const std::string& name, const std::string& text);

}  // namespace nanotron::deck
