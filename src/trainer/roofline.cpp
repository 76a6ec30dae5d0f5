#include "nanotron/trainer/roofline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "nanotron/model/cost.hpp"
#include "nanotron/trainer/training_state.hpp"

namespace nanotron::trainer {
namespace {

// All calls of one kernel.
struct KernelTotal {
  std::string_view kernel;
  std::uint64_t calls = 0, launches = 0;
  double bytes = 0.0, flops = 0.0, seconds = 0.0;

  void add(const WorkRow& row, double duration) {
    const auto times = static_cast<double>(row.calls);
    calls += row.calls;
    launches += row.launches;
    bytes += times * row.work.bytes();
    flops += times * row.work.flops;
    seconds += duration;
  }
};

double rate_of(const WorkRow& row, const deck::Machine& m) {
  if (row.work.type == ScalarType::bf16 && row.kernel == "attention_forward") return m.attention_forward;
  if (row.work.type == ScalarType::bf16 && row.kernel == "attention_backward") return m.attention_backward;
  if (row.kernel == "attention_backward_deterministic") return m.attention_deterministic;
  if (row.kernel == "attention_forward_mma" || row.kernel == "attention_backward_mma") return m.attention_mma;
  return m.gemm(row.work.type);
}

constexpr double gib = 1024.0 * 1024.0 * 1024.0;

std::string line_of(const KernelTotal& k, double step) {
  return fmt::format("  {:<26}{:>8}{:>10}{:>11.2f}{:>11.3f}{:>11.3f}{:>9.1f} %\n", k.kernel, k.calls, k.launches,
                     k.bytes / gib, k.flops / 1e12, 1e3 * k.seconds, 100.0 * k.seconds / step);
}

}  // namespace

double roofline_seconds(const WorkRow& row, const deck::Machine& machine) {
  const double moving = row.work.bytes() / machine.memory, computing = row.work.flops / rate_of(row, machine);
  return static_cast<double>(row.calls) * std::max(moving, computing) +
         static_cast<double>(row.launches) * machine.launch;
}

std::string describe_roofline(const deck::Config& config, const comm::GridCoordinate& at,
                              const deck::Machine& machine) {
  const WorkList work = step_work(config, at, processor_of(machine));
  std::vector<KernelTotal> kernels;
  KernelTotal all{.kernel = "step"};
  for (const WorkRow& row : work.rows()) {
    auto found = std::ranges::find(kernels, row.kernel, &KernelTotal::kernel);
    if (found == kernels.end()) found = kernels.insert(found, {.kernel = row.kernel});
    const double seconds = roofline_seconds(row, machine);
    found->add(row, seconds);
    all.add(row, seconds);
  }
  std::ranges::sort(kernels, std::greater(), &KernelTotal::seconds);
  std::string text = fmt::format("roofline of rank (pp {}, cp {}, tp {}) on {}, without communication:\n", at.pp, at.cp,
                                 at.tp, machine.name);
  text += fmt::format("  {:<26}{:>8}{:>10}{:>11}{:>11}{:>11}{:>11}\n", "kernel", "calls", "launches", "GiB", "TFLOP",
                      "ms", "share");
  for (const KernelTotal& k : kernels) text += line_of(k, all.seconds);
  text += line_of(all, all.seconds);
  const auto tokens = static_cast<double>(tokens_per_step(config));
  const auto ranks = static_cast<double>(comm::shape_of(config).size());
  const double flops = tokens * model::training_flops_per_token(config.model, config.data.sequence_length) / ranks;
  const double peak = machine.peak(config.precision.compute);
  return text + fmt::format("  {:.0f} tokens/s per rank, {:.1f} % of {:.0f} TFLOP/s, {} wait{} of the host\n",
                            tokens / ranks / all.seconds, 100.0 * flops / all.seconds / peak, peak / 1e12, work.waits(),
                            work.waits() == 1 ? "" : "s");
}

}  // namespace nanotron::trainer
