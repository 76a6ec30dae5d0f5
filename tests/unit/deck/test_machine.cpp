// Machine files: those that are shipped, and what is said of wrong ones.

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

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
  EXPECT_DOUBLE_EQ(m.attention_deterministic, 1e12 / 1.14);  // files of before have no such key
  const std::string told = with(good, " attention_mma", " attention_deterministic_tflops = 0.5, attention_mma");
  EXPECT_EQ(read_machine("m.nml", told).attention_deterministic, 0.5e12);
  EXPECT_EQ(m.memory, 200e9);
  EXPECT_EQ(m.launch, 1e-6);
}

TEST(Machine, WhatIsWrongIsSaidWithItsLine) {
  const auto expect = [](const std::string& text, const std::string& words) {
    EXPECT_NE(message_of(text).find(words), std::string::npos) << message_of(text);
  };
  expect(with(good, "'cpu'", "'tpu'"), "m.nml:2:26: error: 'tpu' is not a legal value of processor");
  expect(with(good, "= 200", "= 0"), "m.nml:7:20: error: memory_gb_per_s is out of range");
  expect(with(good, "launch_us", "lunch_us"), "did you mean 'launch_us'?");
  expect(with(good, ", launch_us = 1", ""), "group '&machine' needs the key 'launch_us'");
  expect(with(good, "= 4,", "= four,"), "m.nml:3:42");
  expect("", "needs the key 'name'");
}

const std::string connected = good +
                              "&node\n ranks = 4, cores = 2, memory_gb = 16, link_gb_per_s = 10\n"
                              " latency_us = 2, collective_share = 0.1, watts = 0\n/\n"
                              "&network rails = 2, rail_gb_per_s = 25, latency_us = 5 /\n"
                              "&kernels name(1) = 'adamw', gb_per_s(1) = 7 /\n";

TEST(Machine, SaysHowRanksAreConnected) {
  const Machine alone = read_machine("m.nml", good), m = read_machine("m.nml", connected);
  EXPECT_EQ(alone.node.ranks, 0);
  EXPECT_EQ(alone.network.rails, 0);
  EXPECT_EQ(m.node.ranks, 4);
  EXPECT_EQ(m.node.memory_bytes, 16e9);
  EXPECT_EQ(m.node.link, 10e9);
  EXPECT_EQ(m.network.rails, 2);
  EXPECT_EQ(m.network.rail, 25e9);
  ASSERT_EQ(m.kernels.size(), 1U);
  EXPECT_EQ(m.kernels[0].kernel, "adamw");
  EXPECT_EQ(m.kernels[0].rate, 7e9);
}

TEST(Machine, ReservesMemoryBesidesTheBuffer) {
  const Machine host = read_machine("m.nml", connected);  // files of before have no such key
  EXPECT_EQ(host.node.reserved_bytes, 0.5e9);
  EXPECT_EQ(host.buffer_limit(), 15.5e9);
  EXPECT_EQ(read_machine("m.nml", with(connected, "'cpu'", "'gpu'")).buffer_limit(), 12e9);
  const std::string named = with(connected, "memory_gb = 16", "memory_gb = 16, reserved_gb = 2.5");
  EXPECT_EQ(read_machine("m.nml", named).buffer_limit(), 13.5e9);
  EXPECT_EQ(read_machine("m.nml", machine_text(read_machine("m.nml", named), "")).buffer_limit(), 13.5e9);
  EXPECT_EQ(read_machine("m.nml", good).buffer_limit(), std::numeric_limits<double>::infinity());
  EXPECT_NE(message_of(with(named, "2.5", "-1")).find("reserved_gb is out of range"), std::string::npos);
}

const std::string by_shape =
    with(with(good, "attention_forward_tflops = 1, ", ""), "attention_backward_tflops = 1", "") +
    "&attention head_dim = 128, 64, 64, length = 2048, 8192, 2048, forward_tflops = 5, 4, 3,\n"
    " backward_tflops = 4, 3, 2, deterministic_tflops(2) = 1 /\n"
    "&kernels name = 'adamw', 'other', gb_per_s(1) = 7, share(2) = 0.5 /\n";

TEST(Machine, HasRatesByShape) {
  const Machine m = read_machine("m.nml", by_shape);
  ASSERT_EQ(m.attention.size(), 3U);
  EXPECT_EQ(m.attention[0].head_dim, 64);
  EXPECT_EQ(m.attention[0].length, 2048);
  EXPECT_EQ(m.attention[0].forward, 3e12);
  EXPECT_DOUBLE_EQ(m.attention[0].deterministic, 2e12 / 1.14);
  EXPECT_EQ(m.attention[1].length, 8192);
  EXPECT_EQ(m.attention[1].backward, 3e12);
  EXPECT_EQ(m.attention[1].deterministic, 1e12);
  EXPECT_EQ(m.attention[2].head_dim, 128);
  ASSERT_EQ(m.kernels.size(), 2U);
  EXPECT_EQ(m.kernels[0].rate, 7e9);
  EXPECT_EQ(m.kernels[1].rate, 100e9);  // of 200
  const auto expect = [](const std::string& text, const std::string& words) {
    EXPECT_NE(message_of(text).find(words), std::string::npos) << message_of(text);
  };
  expect(with(by_shape, "length = 2048, 8192", "length = 2048, 2048"), "a second row of this head_dim and length");
  expect(with(by_shape, "backward_tflops = 4, 3, 2", "backward_tflops = 4, 3"), "a row without length, forward_tflops");
  expect(with(by_shape, "gb_per_s(1) = 7", "gb_per_s = 7, 3"), "without a rate in gb_per_s or share, or with both");
}

TEST(Machine, IsWrittenAsItIsRead) {
  for (const std::string& text : {good, connected, by_shape}) {
    const Machine m = read_machine("m.nml", text);
    const std::string written = machine_text(m, "! a comment\n");
    const Machine again = read_machine("written.nml", written);
    EXPECT_EQ(machine_text(again, "! a comment\n"), written);
    EXPECT_EQ(again.node.ranks, m.node.ranks);
    EXPECT_EQ(again.kernels.size(), m.kernels.size());
    EXPECT_EQ(again.attention.size(), m.attention.size());
  }
}

TEST(Machine, WhatIsWrongOfConnectionsIsSaidWithItsLine) {
  const auto expect = [](const std::string& text, const std::string& words) {
    EXPECT_NE(message_of(text).find(words), std::string::npos) << message_of(text);
  };
  expect(with(connected, "link_gb_per_s = 10", "link_gb_per_s = 0"),
         "m.nml:10:56: error: link_gb_per_s is out of range");
  expect(with(connected, "watts = 0", "watts = -1"), "m.nml:11:50: error: watts is out of range");
  expect(with(connected, "rails = 2, ", ""), "group '&network' needs the key 'rails'");
  expect(with(connected, ", gb_per_s(1) = 7", ""), "m.nml:14:20: error: a kernel without a rate in gb_per_s");
  expect(with(connected, "&node", "&nodes"), "m.nml:9");
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
