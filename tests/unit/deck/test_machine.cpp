// Machine files: those that are shipped, and what is said of wrong ones.

#include <gtest/gtest.h>

#include <filesystem>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/machine.hpp"
#include "nanotron/deck/read_deck.hpp"
#include "support/test_folder.hpp"

namespace nanotron::deck {
namespace {

const std::string good =
    "&machine\n name = 'a', processor = 'cpu'\n peak_fp8_tflops = 8, peak_bf16_tflops = 4,"
    " gemm_fp8_tflops = 4, gemm_bf16_tflops = 2\n gemm_fp32_tflops = 1\n"
    " gemm_fp64_tflops = 0.5, attention_forward_tflops = 1, attention_backward_tflops = 1\n"
    " attention_mma_tflops = 1\n"
    " memory_gb_per_s = 200, launch_us = 1\n/\n";

std::string message_of(const std::string& text) {
  try {
    read_machine("m.nml", text);
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), ExitCode::deck_error);
    return e.what();
  }
  return "";
}

std::string with(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(Machine, IsReadInUnitsOfTheStandard) {
  const Machine m = read_machine("m.nml", good);
  EXPECT_EQ(m.name, "a");
  EXPECT_FALSE(m.is_gpu);
  EXPECT_EQ(m.peak(ScalarType::fp8), 8e12);
  EXPECT_EQ(m.peak(ScalarType::bf16), 4e12);
  EXPECT_EQ(m.gemm(ScalarType::fp8), 4e12);
  EXPECT_EQ(m.gemm(ScalarType::bf16), 2e12);
  EXPECT_EQ(m.gemm(ScalarType::fp32), 1e12);
  EXPECT_EQ(m.gemm(ScalarType::fp64), 0.5e12);
  EXPECT_EQ(m.attention_mma, 1e12);
  EXPECT_EQ(m.memory, 200e9);
  EXPECT_EQ(m.launch, 1e-6);
}

TEST(Machine, WhatIsWrongIsSaidWithItsLine) {
  const auto expect = [](const std::string& text, const std::string& words) {
    EXPECT_NE(message_of(text).find(words), std::string::npos) << message_of(text);
  };
  expect(with(good, "'cpu'", "'tpu'"), "m.nml:2:26: error: 'tpu' is no legal value of processor");
  expect(with(good, "= 200", "= 0"), "m.nml:7:20: error: memory_gb_per_s is out of range");
  expect(with(good, "launch_us", "lunch_us"), "did you mean 'launch_us'?");
  expect(with(good, ", launch_us = 1", ""), "group '&machine' needs the key 'launch_us'");
  expect(with(good, "= 4,", "= four,"), "m.nml:3:42");
  expect("", "needs the key 'name'");
}

TEST(Machine, EveryShippedFileIsLegal) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::test_folder() / "../input/machines")) {
    EXPECT_EQ(message_of(read_deck_file(entry.path().string())), "") << entry.path();
    ++files;
  }
  EXPECT_GT(files, 0);
}

}  // namespace
}  // namespace nanotron::deck
