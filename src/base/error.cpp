#include "nanotron/base/error.hpp"

#include <mpi.h>

#include <array>
#include <string_view>

#include "nanotron/base/gpu_api.hpp"

namespace nanotron {

std::string format(const Expectation& e) {
  std::string text = "error: " + e.what;
  const auto line = [&text](std::string_view label, std::string_view part) {
    while (part.ends_with('\n')) part.remove_suffix(1);
    if (part.empty()) return;
    text += fmt::format("\n  {:<10}", label);
    for (const char c : part) {
      text += c;
      if (c == '\n') text.append(12, ' ');
    }
  };
  line("expected:", e.expected);
  line("found:", e.found);
  line("where:", e.where);
  line("change:", e.change);
  return text;
}

std::string reason(const Error& error) {
  constexpr std::string_view prefix = "error: ";
  std::string_view text(error.what());
  if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
  return std::string(text);
}

void fail(ExitCode code, const Expectation& expectation) { throw Error(code, format(expectation)); }

namespace detail {
namespace {

// Source paths as seen from the top of the repository.
std::string place(const char* file, int line) {
  std::string_view path(file);
  for (const std::string_view top : {"/include/nanotron/", "/src/", "/tests/"}) {
    const auto at = path.rfind(top);
    if (at != std::string_view::npos) {
      path.remove_prefix(at + 1);
      break;
    }
  }
  return fmt::format("{}:{}", path, line);
}

[[noreturn]] void library_failed(const char* library, const std::string& said, const char* call, const char* file,
                                 int line) {
  fail(ExitCode::system_error, {.what = fmt::format("a call to {} failed", library),
                                .expected = "",
                                .found = said,
                                .where = fmt::format("{} at {}", call, place(file, line)),
                                .change = ""});
}

// This layer is not linked to NCCL and cuBLAS, which have functions for these messages.
template <std::size_t N>
std::string word_for(const std::array<const char*, N>& words, int status) {
  const bool known = status >= 0 && static_cast<std::size_t>(status) < N && words[status][0] != '\0';
  return fmt::format("{} (status {})", known ? words[status] : "an unknown error", status);
}

}  // namespace

void check_mpi(int status, const char* call, const char* file, int line) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(status, text, &length);
  library_failed("MPI", std::string(text, static_cast<std::size_t>(length)), call, file, line);
}

void check_gpu(int status, const char* call, const char* file, int line) {
  if (status == 0) return;
#ifdef NANOTRON_WITH_GPU
  const auto error = static_cast<gpuError_t>(status);
  library_failed(NANOTRON_GPU_API, fmt::format("{}: {}", gpuGetErrorName(error), gpuGetErrorString(error)), call, file,
                 line);
#else
  library_failed("the GPU", fmt::format("status {}", status), call, file, line);
#endif
}

void check_nccl(int status, const char* call, const char* file, int line) {
  if (status == 0) return;
  static constexpr std::array<const char*, 8> words{"success",
                                                    "unhandled error of the GPU",
                                                    "unhandled system error",
                                                    "internal error",
                                                    "invalid argument",
                                                    "invalid usage",
                                                    "a remote rank failed",
                                                    "in progress"};
  library_failed("NCCL", word_for(words, status) + "; NCCL_DEBUG=WARN shows more", call, file, line);
}

void check_cublas(int status, const char* call, const char* file, int line) {
  if (status == 0) return;
  static constexpr std::array<const char*, 17> words{"success",
                                                     "not initialized",
                                                     "",
                                                     "allocation failed",
                                                     "",
                                                     "",
                                                     "",
                                                     "invalid value",
                                                     "architecture mismatch",
                                                     "",
                                                     "",
                                                     "mapping error",
                                                     "",
                                                     "execution failed",
                                                     "internal error",
                                                     "not supported",
                                                     "license error"};
  library_failed("cuBLAS", word_for(words, status), call, file, line);
}

void check_rocblas(int status, const char* call, const char* file, int line) {
  if (status == 0) return;
  static constexpr std::array<const char*, 14> words{"success",
                                                     "invalid handle",
                                                     "not implemented",
                                                     "invalid pointer",
                                                     "invalid size",
                                                     "memory error",
                                                     "internal error",
                                                     "",
                                                     "",
                                                     "",
                                                     "",
                                                     "invalid value",
                                                     "continue",
                                                     "check numerics failed"};
  library_failed("rocBLAS", word_for(words, status), call, file, line);
}

void check_hipblas(int status, const char* call, const char* file, int line) {
  if (status == 0) return;
  static constexpr std::array<const char*, 12> words{"success",        "not initialized",    "allocation failed",
                                                     "invalid value",  "mapping error",      "execution failed",
                                                     "internal error", "not supported",      "architecture mismatch",
                                                     "no handle",      "invalid enumerator", "unknown status"};
  library_failed("hipBLASLt", word_for(words, status), call, file, line);
}

void require_failed(const char* condition, const char* file, int line, const std::string& message) {
  fail(ExitCode::system_error, {.what = "an internal check failed: " + message,
                                .expected = condition,
                                .found = "",
                                .where = place(file, line),
                                .change = "this is a bug: please report it"});
}

}  // namespace detail
}  // namespace nanotron
