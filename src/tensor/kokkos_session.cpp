#include "nanotron/tensor/kokkos_session.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "nanotron/base/error.hpp"
#include "nanotron/tensor/tensor.hpp"

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

// A kernel reads the Views that it captures as its compiler lays them out, and the host writes them as its own does.
void require_one_layout_of_views() {
  constexpr std::size_t on_host = sizeof(Vector<double>) + sizeof(Matrix<double>);
  std::size_t in_kernels = on_host;
  if constexpr (built_for == Processor::gpu) {
    Kokkos::parallel_reduce(
        "size_of_views", Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<index_t>>(0, 1),
        KOKKOS_LAMBDA(const index_t, std::size_t& sum) { sum += sizeof(Vector<double>) + sizeof(Matrix<double>); },
        in_kernels);
  }
  if (in_kernels == on_host) return;
  fail(ExitCode::system_error,
       {.what = "kernels of this build misread their arguments: nvcc lays a View out in another way than the host",
        .expected = fmt::format("a vector and a matrix of {} bytes", on_host),
        .found = fmt::format("{}", in_kernels),
        .where = fmt::format("Kokkos {}", KOKKOS_VERSION),
        .change = "build with a Kokkos that knows of it (kokkos/mdspan#434), or with Kokkos_ENABLE_IMPL_VIEW_LEGACY"});
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
  require_one_layout_of_views();
}

}  // namespace nanotron
