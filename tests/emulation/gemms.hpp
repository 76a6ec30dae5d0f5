#pragma once

// What the emulated cuBLASLt was asked for.

namespace nanotron::emulation {

inline constexpr int multiprocessors = 132;  // of the GPU, an H200's
inline int multiprocessors_of_last_gemm = 0;

}  // namespace nanotron::emulation
