#include "nanotron/base/error.hpp"
#include "nanotron/kernels/gemm/gemm_algorithms.hpp"

namespace nanotron::kernels {

void use_gemm_algorithms(Device&, const GemmAlgorithms&, const std::string&) {}

void leave_multiprocessors(Device&, int) {}

void measure_gemm_algorithms(Device&) {
  fail(ExitCode::deck_error, {.what = "there are no GEMM algorithms to measure",
                              .expected = "a build for GPUs",
                              .found = "a build for CPUs: its libraries choose by themselves"});
}

GemmAlgorithms measured_gemm_algorithms(const Device&) { return {}; }

GemmChoices gemm_choices(const Device&) { return {}; }

}  // namespace nanotron::kernels
