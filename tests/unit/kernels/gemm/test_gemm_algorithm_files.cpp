// ranks: 1
#include <gtest/gtest.h>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/gemm/gemm_algorithms.hpp"

namespace nanotron::kernels {
namespace {

std::string error_of(const std::string& text) {
  try {
    read_gemm_algorithms(text, "a.gemm");
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::deck_error);
    return error.what();
  }
  return "";
}

TEST(GemmAlgorithmFiles, HaveAlgorithmsOfTheLibrarysSize) {
  const std::string amd =
      text_of({.library = "hipBLASLt 1.1.0, AMD Instinct MI300X", .of = {{"nt", std::string(48, 'a')}}});
  EXPECT_EQ(error_of(amd), "");
  EXPECT_NE(error_of(amd + "nn = " + std::string(128, 'a') + "\n").find("48 hexadecimal digits"), std::string::npos);
}

TEST(GemmAlgorithmFiles, NameTheLineThatIsWrong) {
  const GemmAlgorithms two{.library = "cuBLASLt 130100, NVIDIA H200",
                           .of = {{"nt bf16 1 x 2", std::string(128, 'a')}, {"nn fp32 3 x 4", std::string(128, '0')}}};
  const std::string text = text_of(two);
  EXPECT_EQ(error_of(text), "");
  EXPECT_EQ(read_gemm_algorithms(text, "a.gemm").of, two.of);
  EXPECT_EQ(read_gemm_algorithms(text, "a.gemm").library, two.library);

  const auto line = [](int number) { return "a.gemm:" + std::to_string(number); };
  EXPECT_NE(error_of("").find(line(1)), std::string::npos);
  EXPECT_NE(error_of("another file\n").find(line(1)), std::string::npos);
  EXPECT_NE(error_of(text.substr(0, text.find('\n') + 1)).find(line(2)), std::string::npos);
  EXPECT_NE(error_of(text.substr(0, text.size() - 5)).find(line(4)), std::string::npos);
  EXPECT_NE(error_of(text + "nt bf16 5 x 6 = xyz\n").find(line(5)), std::string::npos);
  EXPECT_NE(error_of(text + "no algorithm\n").find(line(5)), std::string::npos);
  EXPECT_NE(error_of(text + "nt bf16 1 x 2 = " + std::string(128, 'b') + "\n").find(line(5)), std::string::npos);
}

}  // namespace
}  // namespace nanotron::kernels
