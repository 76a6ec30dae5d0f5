// The time of GEMMs by shape and of kernels under other software.

#include <gtest/gtest.h>

#include "nanotron/base/error.hpp"
#include "nanotron/simulation/operation_time.hpp"
#include "nanotron/trainer/plan/kernel_time.hpp"

namespace nanotron::simulation {
namespace {

using trainer::gemm_seconds;

deck::Machine gpu() {
  deck::Machine m;
  m.gemm_bf16 = 100e12;
  m.gemm_fp32 = 10e12;
  m.attention_forward = m.attention_backward = 50e12;
  m.memory = 1e15;
  m.gemm_model = {.multiprocessors = 100.0, .ramp_k = 0.0, .operands = 0.0};
  return m;
}

double seconds(const GemmExtents& e, const deck::Machine& m) { return gemm_seconds(e, ScalarType::bf16, 0.0, m); }
double flops(const GemmExtents& e) { return 2.0 * static_cast<double>(e.m * e.n * e.k * e.count); }

// 100 tiles of 256 x 128 fill 100 multiprocessors: the full rate. A tile more: a second wave.
TEST(GemmTime, IsQuantisedInWavesOfTiles) {
  const deck::Machine m = gpu();
  const GemmExtents full{2560, 1280, 4096, 1};
  EXPECT_DOUBLE_EQ(seconds(full, m), flops(full) / 100e12);
  const GemmExtents more{2561, 1280, 4096, 1};
  EXPECT_GT(seconds(more, m), 1.05 * seconds(full, m));
  EXPECT_LE(seconds(more, m), 2.0 * seconds(full, m));
}

TEST(GemmTime, ApproachesTheRateOfLargeShapes) {
  deck::Machine m = gpu();
  m.gemm_model.ramp_k = 64.0;
  double last = 0.0;
  for (const index_t n : {256, 1024, 4096, 16384}) {
    const GemmExtents e{n, n, n, 1};
    const double rate = flops(e) / seconds(e, m);
    EXPECT_GT(rate, last) << n;
    EXPECT_LE(rate, 100e12) << n;
    last = rate;
  }
  EXPECT_GT(last, 97e12);
}

// A product of few rows is bound by its operands; k is split where C has few tiles.
TEST(GemmTime, IsNeverFasterThanMemory) {
  deck::Machine m = gpu();
  m.memory = 1e9;
  EXPECT_DOUBLE_EQ(gemm_seconds({1, 1024, 1024, 1}, ScalarType::bf16, 2e9, m), 2.0);
  const GemmExtents deep{128, 128, 1 << 20, 1};
  EXPECT_LT(seconds(deep, gpu()), 0.2 * flops(deep) / 1e12);
}

TEST(GemmTime, OfAHostAddsTheOperands) {
  deck::Machine m = gpu();
  m.gemm_model = {.multiprocessors = 0.0, .ramp_k = 0.0, .operands = 4.0};
  EXPECT_DOUBLE_EQ(gemm_seconds({1000, 1000, 1000, 1}, ScalarType::fp32, 8.0, m), 2e9 / 10e12 + 2.0);
}

WorkRow attention(const char* kernel, double products) {
  return {.kernel = kernel,
          .work = {.flops = 2.0 * products * 64.0 * 512.0 * 513.0 / 2.0 * 8.0,
                   .type = ScalarType::bf16,
                   .gemm = {512, 512, 64, 8}},
          .calls = 3,
          .launches = 3};
}

// Scores of 8 heads, 512 x 512, two bytes each, in passes over memory: forward softmax 2 and dropout 2.5, backward 3
// and 2.5; the GEMMs take no time here.
TEST(KernelTime, OfUnfusedAttentionIsItsPassesOverTheScores) {
  deck::Machine m = gpu();
  m.memory = 1e9;
  m.gemm_bf16 = 1e30;
  m.gemm_model = {};
  const double scores = 8.0 * 512.0 * 512.0, values = 8.0 * 512.0 * 64.0;
  const double gemm = 2.0 * (2.0 * values + scores) / 1e9;
  Software software{.attention = AttentionForm::unfused};
  const WorkRow forward = attention("attention_forward", 2.0), backward = attention("attention_backward", 5.0);
  EXPECT_NEAR(kernel_seconds(forward, m, software, {}), 2.0 * gemm + 2.0 * 2.0 * scores / 1e9, 1e-12);
  software.dropout = true;
  const double with_dropout = 2.0 * gemm + 2.0 * 4.5 * scores / 1e9;
  EXPECT_NEAR(kernel_seconds(forward, m, software, {}), with_dropout, 1e-12);
  const double back = 4.0 * gemm + 2.0 * 5.5 * scores / 1e9;
  EXPECT_NEAR(kernel_seconds(backward, m, software, {}), back, 1e-12);
  software.attention = AttentionForm::recomputed;
  EXPECT_NEAR(kernel_seconds(backward, m, software, {}), back + with_dropout, 1e-12);
  EXPECT_NEAR(kernel_seconds(forward, m, {}, {}), forward.work.flops / 50e12, 1e-12);
}

// Rates by length: exact at those of the file, between them and below 1/r linear in 1/length, above them the last.
// Queries with as many keys have the rate, whatever the mask; the nearest head_dim counts.
TEST(KernelTime, OfAttentionIsByLengthHeadWidthAndDeterminism) {
  deck::Machine m = gpu();
  m.attention = {{64, 1024, 4e12, 2e12, 1e12}, {128, 1024, 10e12, 5e12, 4e12}, {128, 4096, 20e12, 10e12, 8e12}};
  const auto rate = [&](const char* kernel, index_t length, index_t head_dim, double pairs) {
    const bool forward = std::string_view(kernel).starts_with("attention_forward");
    const double flops = 2.0 * (forward ? 2.0 : 5.0) * static_cast<double>(head_dim) * pairs * 8.0;
    const WorkRow row{.kernel = kernel,
                      .work = {.flops = flops, .type = ScalarType::bf16, .gemm = {length, length, head_dim, 8}},
                      .calls = 1,
                      .launches = 1};
    return flops / trainer::work_seconds(row, m);
  };
  const auto causal = [](double n) { return n * (n + 1.0) / 2.0; };
  EXPECT_NEAR(rate("attention_forward", 1024, 128, causal(1024)), 10e12, 1.0);
  EXPECT_NEAR(rate("attention_forward", 4096, 128, causal(4096)), 20e12, 1.0);
  EXPECT_NEAR(rate("attention_forward", 8192, 128, causal(8192)), 20e12, 1.0);
  EXPECT_NEAR(rate("attention_backward", 2048, 128, causal(2048)), 1.0 / (1 / 5e12 - 0.1 / 1e12 * 2.0 / 3.0), 1.0);
  EXPECT_NEAR(rate("attention_backward", 512, 128, causal(512)), 1.0 / (1 / 5e12 + 0.1 / 1e12 * 4.0 / 3.0), 1.0);
  EXPECT_NEAR(rate("attention_backward_deterministic", 4096, 120, causal(4096)), 8e12, 1.0);
  EXPECT_NEAR(rate("attention_backward_deterministic", 4096, 80, causal(4096)), 1e12, 1.0);
  EXPECT_NEAR(rate("attention_forward", 2048, 128, 2048.0 * 2048.0), rate("attention_forward", 4095, 128, causal(4095)),
              1.0);
}

TEST(KernelTime, OfGroupedGemmsIsThatOfOurOwnKernels) {
  deck::Machine m = gpu();
  m.attention_mma = 25e12;
  const WorkRow library{
      .kernel = "gemm", .work = {.type = ScalarType::bf16, .gemm = {2560, 1280, 4096, 1}}, .calls = 1};
  WorkRow grouped = library;
  grouped.kernel = "gemm_grouped";
  EXPECT_DOUBLE_EQ(trainer::work_seconds(grouped, m), 4.0 * trainer::work_seconds(library, m));
}

TEST(KernelTime, OfOtherKernelsIsByTheirShareOfTheMemory) {
  deck::Machine m = gpu();
  m.memory = 8.0;
  m.launch = 0.0;
  m.kernels = {{"swiglu_forward", 4.0}, {"other", 2.0}};
  const auto seconds = [&](const char* kernel, const GemmExtents& gemm) {
    return trainer::work_seconds({.kernel = kernel, .work = {.read = 16.0, .gemm = gemm}, .calls = 1, .launches = 1},
                                 m);
  };
  EXPECT_DOUBLE_EQ(seconds("swiglu_forward", {}), 4.0);
  EXPECT_DOUBLE_EQ(seconds("cast", {}), 8.0);
  EXPECT_DOUBLE_EQ(seconds("gemm", {1, 1, 1, 1}), 2.0);
  EXPECT_DOUBLE_EQ(seconds("attention_forward_mma", {}), 8.0);
}

// One number for each score that is not masked, in forward and again in backward.
TEST(KernelTime, OfDropoutInAFusedKernelIsThatOfItsRandomNumbers) {
  deck::Machine m;
  m.gemm_bf16 = m.attention_forward = m.attention_backward = 1e12;
  m.memory = 1e12;
  m.gemm_model.multiprocessors = 10;
  const double scores = 512.0 * 1025.0 * 16.0;
  const auto seconds = [&](const char* kernel, double gemms, bool dropout) {
    const WorkRow row{.kernel = kernel,
                      .work = {.flops = 2.0 * gemms * 128.0 * scores,
                               .type = ScalarType::bf16,
                               .gemm = {.m = 1024, .n = 1024, .k = 128, .count = 16}},
                      .calls = 1,
                      .launches = 1};
    return kernel_seconds(row, m, {.dropout = dropout}, {});
  };
  const double numbers = scores * 19.5 / (10 * 64 * 1.7e9);
  EXPECT_NEAR(seconds("attention_forward", 2.0, true) - seconds("attention_forward", 2.0, false), numbers, 1e-12);
  EXPECT_NEAR(seconds("attention_backward", 5.0, true) - seconds("attention_backward", 5.0, false), numbers, 1e-12);
}

// Other software: no rates of our kernels, no kernels that it lacks, a loss in passes over fp32.
TEST(KernelTime, OfOtherSoftwareIsItsOwn) {
  deck::Machine m = gpu();
  m.memory = 8.0;
  m.launch = 0.0;
  m.kernels = {{"fill", 0.1}, {"other", 2.0}};
  const auto seconds = [&](const char* kernel, const Software& software) {
    return kernel_seconds({.kernel = kernel, .work = {.read = 48.0}, .calls = 1, .launches = 1}, m, software, {});
  };
  EXPECT_DOUBLE_EQ(seconds("fill", {}), 480.0);
  EXPECT_DOUBLE_EQ(seconds("fill", {.kernel_share = 0.75}), 8.0);
  EXPECT_DOUBLE_EQ(seconds("cross_entropy_whole", {.kernel_share = 1.0, .unfused_loss = true}), 52.0);
  EXPECT_DOUBLE_EQ(seconds("cross_entropy_local_max", {.unfused_loss = true}), 0.0);
  EXPECT_DOUBLE_EQ(seconds("row_maxima", {.casts_beside = true}), 0.0);
  EXPECT_DOUBLE_EQ(seconds("place_rows", {.sorts_in_exchange = true}), 0.0);
  EXPECT_DOUBLE_EQ(seconds("place_rows", {}), 24.0);
}

TEST(KernelTime, OfOtherSoftwareIsReadFromItsFile) {
  const Software s = read_software("s.nml",
                                   "&software\n name = 'S', kernel_share = 0.5, reduces_in_bf16 = .true.,\n"
                                   " rings_beside_gemms = .true., exchanges_by_node = .true.,\n"
                                   " exchange_gb_per_s = 54.0, launch_us = 25.0, waits_for_counts = .true. /\n");
  EXPECT_EQ(s.name, "S");
  EXPECT_DOUBLE_EQ(s.kernel_share, 0.5);
  EXPECT_TRUE(s.reduces_in_bf16 && s.rings_beside_gemms && s.exchanges_by_node);
  EXPECT_DOUBLE_EQ(s.exchange_rate, 54e9);
  EXPECT_DOUBLE_EQ(s.launch, 25e-6);
  EXPECT_TRUE(s.waits_for_counts);
  EXPECT_FALSE(s.unfused_loss || s.casts_beside || s.sorts_in_exchange || s.waits_for_exchanges);
}

TEST(KernelTime, IsWhatTheFileMeasured) {
  deck::Machine m = gpu();
  m.kernels = {{"swiglu_forward", 4.0}};
  m.launch = 0.5;
  const WorkRow row{.kernel = "swiglu_forward", .work = {.read = 6.0, .written = 2.0}, .calls = 2, .launches = 2};
  EXPECT_DOUBLE_EQ(kernel_seconds(row, m, {}, {}), 2.5);
}

// States in host memory: the slower of the two memories, and the slower direction of the link. On a CPU they are one.
TEST(KernelTime, OfStatesOnTheHostIsThatOfTheLink) {
  deck::Machine m = gpu();
  m.memory = 8.0;
  WorkRow row{.kernel = "adamw", .work = {.read = 8.0, .from_host = 6.0, .to_host = 4.0}, .calls = 1, .launches = 1};
  EXPECT_THROW(trainer::work_seconds(row, m), Error);
  m.node.host_link = 2.0;
  EXPECT_DOUBLE_EQ(trainer::work_seconds(row, m), 3.0);
  m.node.host_link = 12.0;
  EXPECT_DOUBLE_EQ(trainer::work_seconds(row, m), 1.0);
  m.is_gpu = false;
  EXPECT_DOUBLE_EQ(trainer::work_seconds(row, m), 1.0 + 10.0 / 8.0);
}

}  // namespace
}  // namespace nanotron::simulation
