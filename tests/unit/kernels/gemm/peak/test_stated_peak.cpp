// ranks: 1
#include "nanotron/kernels/gemm/peak/gemm_peak.hpp"

#include <gtest/gtest.h>

namespace nanotron::kernels {
namespace {

TEST(StatedPeak, ByTheNamesThatTheRuntimeGives) {
  EXPECT_EQ(stated_peak("NVIDIA H200", ScalarType::bf16), 989e12);
  EXPECT_EQ(stated_peak("NVIDIA H200", ScalarType::fp8), 1979e12);
  EXPECT_EQ(stated_peak("NVIDIA GH200 480GB", ScalarType::bf16), 989e12);
  EXPECT_EQ(stated_peak("NVIDIA H100 80GB HBM3", ScalarType::fp32), 67e12);
  EXPECT_EQ(stated_peak("NVIDIA H100 PCIe", ScalarType::bf16), 756e12);
  EXPECT_EQ(stated_peak("NVIDIA A100-SXM4-80GB", ScalarType::fp64), 19.5e12);
  EXPECT_EQ(stated_peak("NVIDIA B200", ScalarType::bf16), 2250e12);
  EXPECT_EQ(stated_peak("NVIDIA GB200", ScalarType::bf16), 2500e12);
  EXPECT_EQ(stated_peak("AMD Instinct MI250X", ScalarType::bf16), 191.5e12);
  EXPECT_EQ(stated_peak("AMD Instinct MI300A", ScalarType::fp64), 122.6e12);
  EXPECT_EQ(stated_peak("AMD Instinct MI300X", ScalarType::fp8), 2615e12);
}

TEST(StatedPeak, IsZeroWhereItIsNotKnown) {
  EXPECT_EQ(stated_peak("", ScalarType::fp32), 0.0);
  EXPECT_EQ(stated_peak("NVIDIA A100-SXM4-80GB", ScalarType::fp8), 0.0);
  EXPECT_EQ(stated_peak("emulated GPU", ScalarType::fp32), 0.0);
  EXPECT_EQ(stated_peak("NVIDIA A100-SXM4-40GB MIG 1g.5gb", ScalarType::bf16), 0.0);
  EXPECT_EQ(stated_peak("Tesla V100-SXM2-32GB", ScalarType::bf16), 0.0);
}

}  // namespace
}  // namespace nanotron::kernels
