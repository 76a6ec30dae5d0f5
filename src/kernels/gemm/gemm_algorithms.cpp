#include "nanotron/kernels/gemm/gemm_algorithms.hpp"

#include <fmt/format.h>

#include <sstream>

#include "nanotron/base/error.hpp"

namespace nanotron::kernels {
namespace {

constexpr const char* title = "nanotron_hpc GEMM algorithms 1";

// Of an algorithm: 64 bytes of cuBLASLt, 24 of hipBLASLt.
std::size_t digits_of(const std::string& library) { return library.starts_with("hipBLASLt") ? 48 : 128; }

[[noreturn]] void refuse(const std::string& file, int line, const std::string& expected, const std::string& found) {
  fail(ExitCode::deck_error, {.what = "the file of GEMM algorithms is damaged",
                              .expected = expected,
                              .found = found.empty() ? "nothing" : found.substr(0, 80),
                              .where = fmt::format("{}:{}", file, line),
                              .change = "recreate it: nanotron_bench --gemm-algorithms FILE --deck DECK"});
}

bool is_algorithm(const std::string& text, std::size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

std::string text_of(const GemmAlgorithms& algorithms) {
  std::string text = fmt::format("{}\n{}\n", title, algorithms.library);
  for (const auto& [gemm, algorithm] : algorithms.of) text += fmt::format("{} = {}\n", gemm, algorithm);
  return text;
}

GemmAlgorithms read_gemm_algorithms(const std::string& text, const std::string& file) {
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line) || line != title) refuse(file, 1, title, line);
  GemmAlgorithms read;
  if (!std::getline(lines, read.library) || read.library.empty()) refuse(file, 2, "library and GPU", "");
  const std::size_t digits = digits_of(read.library);
  for (int number = 3; std::getline(lines, line); ++number) {
    const std::size_t end = line.find(" = ");
    const std::string algorithm = end == std::string::npos ? "" : line.substr(end + 3);
    if (!is_algorithm(algorithm, digits)) {
      refuse(file, number, fmt::format("<GEMM> = {} hexadecimal digits", digits), line);
    }
    if (!read.of.emplace(line.substr(0, end), algorithm).second) refuse(file, number, "a line for each GEMM", line);
  }
  return read;
}

}  // namespace nanotron::kernels
