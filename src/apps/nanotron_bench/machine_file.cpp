#include "benches.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>

#include "attention.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/comm/session/waiting.hpp"
#include "nanotron/deck/machine.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/gemm/peak/gemm_peak.hpp"
#include "nanotron/tensor/arena.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/host_transfers.hpp"

namespace nanotron::apps::bench {
namespace {

constexpr std::size_t few = 1024, many = 4 << 20;  // floats of an all-reduce

// An all-reduce of n ranks by a ring: t(S) = 2 (n-1)/n S / bandwidth + 2 (n-1) latency.
struct Link {
  double bandwidth = 0.0, latency = 0.0;
};

Link measure_link(const Bench& bench, Device& device, const comm::Communicator& ranks) {
  comm::Group group(comm::Communicator::duplicate(ranks.get()),
                    comm::choose_transport(bench.config.parallel.backend, ranks));
  const Kokkos::View<float*, MemorySpace> data("link", many);
  const auto seconds = [&](std::size_t n) {
    return comm::max(group, seconds_of(device, bench.grid.world(), bench.options.seconds, [&] {
                              comm::all_reduce(group, data.data(), n, comm::ReduceOp::sum, device.stream());
                            }).median);
  };
  const double quick = seconds(few), slow = seconds(many);
  const auto n = static_cast<double>(group.size());
  const double a_byte = std::max(slow - quick, 1e-9) / static_cast<double>((many - few) * sizeof(float));
  const double start = std::max(quick - a_byte * static_cast<double>(few * sizeof(float)), 1e-7);
  return {.bandwidth = 2.0 * (n - 1.0) / n / a_byte, .latency = start / (2.0 * (n - 1.0))};
}

// Copies in both directions at once, as those of states and activations in host memory.
double measure_host_link(const Bench& bench, Device& device) {
  constexpr std::size_t n = std::size_t{64} << 20;
  Arena planning = Arena::planning();
  planning.take<std::byte>(MemoryKind::host_optimizer, 2 * n);
  planning.take<std::byte>(MemoryKind::workspace, 2 * n);
  Arena arena(planning.plan());
  std::byte* const there = arena.take<std::byte>(MemoryKind::host_optimizer, 2 * n).data();
  std::byte* const here = arena.take<std::byte>(MemoryKind::workspace, 2 * n).data();
  HostTransfers transfers;
  const Spread s = seconds_of(device, bench.grid.world(), bench.options.seconds, [&] {
    const HostTransfers::Ticket out = transfers.to_host(device, here, there, n);
    const HostTransfers::Ticket in = transfers.to_device(device, there + n, here + n, n);
    transfers.wait(device, out);
    transfers.wait(device, in);
  });
  return comm::min(bench.grid.world(), static_cast<double>(n) / s.median);
}

double launch_seconds(const Bench& bench, Device& device) {
  const Buffer<float> x(1);
  return seconds_of(device, bench.grid.world(), bench.options.seconds,
                    [&] { kernels::fill<float>(device, x.vector(1), 0.0); })
      .median;
}

template <class T>
double peak_of(const Bench& bench, Device& device) {
  const index_t order = kernels::gemm_peak_order<T>(device);
  comm::barrier(bench.grid.world());
  return comm::min(bench.grid.world(), kernels::gemm_peak<T>(device, order, bench.options.seconds));
}

void set_rates(const Bench& bench, Device& device, ScalarType type, const GemmFit& fit, deck::Machine& m) {
  m.gemm_fp64 = peak_of<double>(bench, device);
  m.gemm_fp32 = peak_of<float>(bench, device);
  m.gemm_bf16 = peak_of<bf16>(bench, device);
  (type == ScalarType::fp64 ? m.gemm_fp64 : type == ScalarType::fp32 ? m.gemm_fp32 : m.gemm_bf16) = fit.rate;
  m.gemm_fp8 = m.gemm_bf16;
  m.peak_bf16 = std::max({m.gemm_bf16, m.gemm_fp32});
  m.peak_fp8 = m.peak_bf16;
  m.gemm_model.operands = fit.operands;
}

void set_kernels(const Bench& bench, ScalarType type, deck::Machine& m) {
  for (const MeasuredRate& rate : kernel_rates(bench, type)) {
    if (rate.kernel == "attention_forward") m.attention_mma = rate.flops;
    if (rate.bytes > 0.0) m.kernels.push_back({rate.kernel, rate.bytes});
    if (rate.kernel == "rotary_forward") m.kernels.push_back({"rotary_backward", rate.bytes});
  }
}

void set_node(const Bench& bench, const comm::Communicator& world, Device& device, deck::Machine& m) {
  const comm::Communicator node = world.split_by_node();
  m.node.ranks = node.size();
  m.node.cores = built_for == Processor::cpu ? comm::usable_cores(node.get()) : 0;
  m.node.memory_bytes = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE)) /
                        static_cast<double>(node.size());
  m.node.reserved_bytes = deck::reserved_by_default(m.is_gpu);
  if (m.is_gpu) m.node.host_link = measure_host_link(bench, device);
  const Link inside = node.size() > 1 ? measure_link(bench, device, node) : Link{0.5 * m.memory, m.launch};
  m.node.link = inside.bandwidth;
  m.node.latency = inside.latency;
  if (node.size() == world.size()) return;
  const Link between = measure_link(bench, device, world.split(node.rank(), world.rank()));
  m.network = {.rails = node.size(), .rail = between.bandwidth, .latency = between.latency};
}

}  // namespace

void write_machine(const Bench& bench, const comm::Communicator& world, ScalarType type) {
  Timers timers;
  Device device(timers);
  deck::Machine m;
  m.name = built_for == Processor::gpu ? device_name() : fmt::format("{} ranks on a host", world.size());
  m.is_gpu = built_for == Processor::gpu;
  m.memory = comm::min(bench.grid.world(), copy_rate(bench, device, 512e6));
  m.launch = launch_seconds(bench, device);
  const GemmFit fit = fit_gemms(bench, type);
  set_rates(bench, device, type, fit, m);
  set_kernels(bench, type, m);
  m.attention = attention_rates(bench, type);
  set_node(bench, world, device, m);
  const std::string text = deck::machine_text(
      m, fmt::format("! Measured by nanotron_bench --machine: {} ranks at once, kernels and shapes of {} in {}\n"
                     "! GEMMs: mean error of the formula over these shapes {:.1f} %\n",
                     world.size(), bench.options.deck, name_of(type), 100.0 * fit.error));
  bench.report.line(text);
  comm::collectively(world.get(), [&] {
    if (world.rank() != 0) return;
    std::ofstream file(bench.options.machine);
    file << text;
    file.close();
    if (!file) {
      fail(ExitCode::system_error,
           {.what = "cannot write " + bench.options.machine, .change = "check --machine and its folder"});
    }
  });
}

}  // namespace nanotron::apps::bench
