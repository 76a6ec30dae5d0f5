#pragma once

// How the program fails: one exception type that carries the exit code, and a message that says what was
// expected, what was found, where, and what to change.

#include <fmt/core.h>

#include <stdexcept>
#include <string>

namespace nanotron {

/// The documented exit codes of every program.
enum class ExitCode : int {
  ok = 0,
  data_error = 65,      // data or a checkpoint is damaged or unreadable
  numerics_error = 70,  // non-finite numbers beyond the retry policy
  system_error = 71,    // MPI, GPU, file system, or an internal invariant
  stopped_early = 75,   // wall time, signal or STOP file: resume me
  deck_error = 78,      // the deck or the command line is wrong
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode exit_code() const { return code_; }

 private:
  ExitCode code_;
};

/// The parts of a message; an empty part is left out.
struct Expectation {
  std::string what{};      // one sentence: what went wrong
  std::string expected{};  // what the program needs
  std::string found{};     // what it got
  std::string where{};     // file, key, rank
  std::string change{};    // what the user can do
};

/// "error: <what>" and one indented line for each other part.
std::string format(const Expectation& expectation);

/// The message without the leading "error: ", for use within another message.
std::string reason(const Error& error);

/// Throws Error(code, format(expectation)).
[[noreturn]] void fail(ExitCode code, const Expectation& expectation);

namespace detail {
// Each throws Error(system_error) with the library's message unless status means success.
void check_mpi(int status, const char* call, const char* file, int line);
void check_gpu(int status, const char* call, const char* file, int line);
void check_nccl(int status, const char* call, const char* file, int line);
void check_cublas(int status, const char* call, const char* file, int line);
void check_rocblas(int status, const char* call, const char* file, int line);
void check_hipblas(int status, const char* call, const char* file, int line);
[[noreturn]] void require_failed(const char* condition, const char* file, int line, const std::string& message);
}  // namespace detail

}  // namespace nanotron

#define NANOTRON_CHECK_MPI(call) ::nanotron::detail::check_mpi((call), #call, __FILE__, __LINE__)
/// Names the call as CUDA or HIP does (base/gpu_api.hpp).
#define NANOTRON_CHECK_GPU(call) NANOTRON_CHECK_GPU_CALL(call)
#define NANOTRON_CHECK_GPU_CALL(call) ::nanotron::detail::check_gpu(static_cast<int>(call), #call, __FILE__, __LINE__)
#define NANOTRON_CHECK_NCCL(call) ::nanotron::detail::check_nccl(static_cast<int>(call), #call, __FILE__, __LINE__)
#define NANOTRON_CHECK_CUBLAS(call) ::nanotron::detail::check_cublas(static_cast<int>(call), #call, __FILE__, __LINE__)
#define NANOTRON_CHECK_ROCBLAS(call) \
  ::nanotron::detail::check_rocblas(static_cast<int>(call), #call, __FILE__, __LINE__)
#define NANOTRON_CHECK_HIPBLAS(call) \
  ::nanotron::detail::check_hipblas(static_cast<int>(call), #call, __FILE__, __LINE__)

/// An internal invariant, checked in every build: NANOTRON_REQUIRE(n > 0, "n = {}", n).
#define NANOTRON_REQUIRE(condition, ...)                                                              \
  do {                                                                                                \
    if (!(condition)) [[unlikely]]                                                                    \
      ::nanotron::detail::require_failed(#condition, __FILE__, __LINE__, ::fmt::format(__VA_ARGS__)); \
  } while (false)
