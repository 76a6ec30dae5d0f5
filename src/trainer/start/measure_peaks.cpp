#include <string>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/kernels/gemm/gemm.hpp"
#include "nanotron/kernels/gemm/peak/gemm_peak.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/trainer/start/gemm_algorithms.hpp"
#include "steps.hpp"

namespace nanotron::trainer {
namespace {

// GEMM peak of all ranks together, measured; written to the log.
template <class T>
double gemm_peak(Device& device, comm::Group& world, Log& log) {
  const index_t order = kernels::gemm_peak_order<T>(device);
  comm::barrier(world);
  const double rate = comm::sum(world, kernels::gemm_peak<T>(device, order, 0.1));
  log.info("measured GEMM peak: {} {}, order {}, {:.1f} GFLOP/s on all ranks together", name_of(scalar_type_of<T>),
           kernels::gemm_library<T>(), order, rate / 1e9);
  return rate;
}

// Stated peak of all ranks' devices together; 0 where it is not known. Written to the log.
double stated_peak(const deck::Config& config, comm::Group& world, Log& log) {
  const std::string name = device_name();
  const double mine = config.output.peak_tflops > 0.0 ? 1e12 * config.output.peak_tflops
                                                      : kernels::stated_peak(name, config.precision.compute);
  if (comm::min(world, mine) == 0.0) return 0.0;
  log.info("stated peak: {} {:.4g} TFLOP/s on each rank ({})", name_of(config.precision.compute), mine / 1e12,
           config.output.peak_tflops > 0.0 ? "output%peak_tflops" : name);
  return comm::sum(world, mine);
}

}  // namespace

template <class T>
StepCost measure_peaks(const deck::Config& config, Device& device, comm::Group& world, Log& log) {
  const double measured = gemm_peak<T>(device, world, log);
  use_gemm_algorithms(config, device, world, log);
  return {.gemm_peak = measured, .stated_peak = stated_peak(config, world, log)};
}

#define NANOTRON_INSTANTIATE(T) template StepCost measure_peaks<T>(const deck::Config&, Device&, comm::Group&, Log&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::trainer
