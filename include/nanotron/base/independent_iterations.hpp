#pragma once

/// NANOTRON_INDEPENDENT_ITERATIONS, before a `for`: no iteration reads what another one writes, so the compiler may
/// vectorise the loop without proof. The loop may not sum over its iterations: clang would also reorder that sum.
#if defined(__INTEL_LLVM_COMPILER) || defined(__NVCOMPILER)
#define NANOTRON_INDEPENDENT_ITERATIONS _Pragma("ivdep")
#elif defined(__clang__)
#define NANOTRON_INDEPENDENT_ITERATIONS _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)  // nvcc too: it hands the words on to its host compiler
#define NANOTRON_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#else
#define NANOTRON_INDEPENDENT_ITERATIONS
#endif
