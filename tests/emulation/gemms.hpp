#pragma once

// What the emulated cuBLASLt or rocBLAS was asked for.

namespace nanotron::emulation {

inline constexpr int multiprocessors = 132;  // of the GPU, an H200's
inline int multiprocessors_of_last_gemm = 0;
// Of bf16, with rows of an operand or of the result that do not begin at multiples of 16 bytes: the fast kernels of
// tensor cores do not take them.
inline int gemms_of_odd_rows = 0;

}  // namespace nanotron::emulation
