#include "nanotron/tensor/kokkos_session.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "nanotron/base/error.hpp"

// Of the OpenMP runtime; null where no library of the program has one.
extern "C" int omp_get_max_threads() __attribute__((weak));

namespace nanotron {
namespace {

// GNU's runtime keeps some bytes of each thread on the stack of the first one, whose end it does not look for.
void require_runnable_threads() {
  constexpr long least = 1024, of_each_cpu = 4;
  const long most = std::max(least, of_each_cpu * ::sysconf(_SC_NPROCESSORS_CONF));
  const long wanted = omp_get_max_threads == nullptr ? 1 : omp_get_max_threads();
  if (wanted <= most) return;
  fail(ExitCode::deck_error, {.what = "more OpenMP threads requested than a host can run",
                              .expected = fmt::format("at most {} on each rank", most),
                              .found = fmt::format("{}", wanted),
                              .where = "OMP_NUM_THREADS, in the environment or set by the launcher",
                              .change = "export OMP_NUM_THREADS=<cores of a rank>"});
}

}  // namespace

KokkosSession::KokkosSession(int gpu) {
  require_runnable_threads();
  std::string program = "nanotron";
  std::string device = "--kokkos-device-id=" + std::to_string(gpu);
  std::vector<char*> arguments{program.data()};
  if (gpu >= 0) arguments.push_back(device.data());
  int count = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  Kokkos::initialize(count, arguments.data());
}

}  // namespace nanotron
