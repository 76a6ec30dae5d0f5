#pragma once
// The instruction sets that compilers use unasked where -march or -mcpu allows them, as pairs of a name, which
// check.cpp asks the processor for, and the macro of a source that is compiled for it.

#ifdef __aarch64__
#define NANOTRON_PROCESSOR_FEATURES(each)                                                                             \
  each("atomics", __ARM_FEATURE_ATOMICS) each("asimdrdm", __ARM_FEATURE_QRDMX) each("asimddp", __ARM_FEATURE_DOTPROD) \
      each("asimdhp", __ARM_FEATURE_FP16_VECTOR_ARITHMETIC) each("bf16", __ARM_FEATURE_BF16_VECTOR_ARITHMETIC)        \
          each("i8mm", __ARM_FEATURE_MATMUL_INT8) each("sve", __ARM_FEATURE_SVE) each("sve2", __ARM_FEATURE_SVE2)
#else
#ifdef __clang__  // does not know the name
#define NANOTRON_FP16_FEATURE(each)
#else
#define NANOTRON_FP16_FEATURE(each) each("avx512fp16", __AVX512FP16__)
#endif
#define NANOTRON_PROCESSOR_FEATURES(each)                                                                          \
  each("sse4.2", __SSE4_2__) each("popcnt", __POPCNT__) each("avx", __AVX__) each("fma4", __FMA4__)                \
      each("xop", __XOP__) each("avx2", __AVX2__) each("fma", __FMA__) each("bmi", __BMI__) each("bmi2", __BMI2__) \
          each("gfni", __GFNI__) each("avx512f", __AVX512F__) each("avx512cd", __AVX512CD__)                       \
              each("avx512dq", __AVX512DQ__) each("avx512bw", __AVX512BW__) each("avx512vl", __AVX512VL__)         \
                  each("avx512ifma", __AVX512IFMA__) each("avx512vbmi", __AVX512VBMI__)                            \
                      each("avx512vbmi2", __AVX512VBMI2__) each("avx512vnni", __AVX512VNNI__)                      \
                          each("avx512bitalg", __AVX512BITALG__) each("avx512vpopcntdq", __AVX512VPOPCNTDQ__)      \
                              each("avx512bf16", __AVX512BF16__) NANOTRON_FP16_FEATURE(each)
#endif

namespace nanotron::apps {

/// Whether the program is compiled for each, in their order.
extern const bool built_for_feature[];

}  // namespace nanotron::apps
