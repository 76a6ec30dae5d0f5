#include "nanotron/trainer/plan/roofline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "nanotron/deck/config.hpp"
#include "nanotron/trainer/plan/kernel_time.hpp"
#include "nanotron/trainer/state/forward_backward.hpp"
#include "nanotron/trainer/state/step_result.hpp"
#include "nanotron/trainer/state/training_state.hpp"

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

constexpr double gib = 1024.0 * 1024.0 * 1024.0;

std::string line_of(const KernelTotal& k, double step, int stages) {
  const auto n = static_cast<double>(stages);
  return fmt::format("  {:<26}{:>8.0f}{:>10.0f}{:>11.2f}{:>11.3f}{:>11.3f}{:>9.1f} %\n", k.kernel,
                     static_cast<double>(k.calls) / n, static_cast<double>(k.launches) / n, k.bytes / gib / n,
                     k.flops / 1e12 / n, 1e3 * k.seconds / n, 100.0 * k.seconds / step);
}

}  // namespace

comm::GridCoordinate coordinate_of_stage(const deck::Config& config, int pp_rank) {
  return {.pp = pp_rank, .cp = comm::shape_of(config).cp - 1};
}

double crowding(const deck::Config& config, const deck::Machine& machine) {
  if (machine.node.cores == 0) return 1.0;
  const int ranks = comm::shape_of(config).size();
  const int in_node = machine.node.ranks == 0 ? ranks : std::min(ranks, machine.node.ranks);
  return std::max(1.0, static_cast<double>(in_node) / machine.node.cores);
}

std::string describe_roofline(const deck::Config& config, const deck::Machine& machine) {
  const comm::GridShape shape = comm::shape_of(config);
  std::vector<KernelTotal> kernels;
  KernelTotal all{.kernel = "step"};
  std::uint64_t waits = 0;
  for (int stage = 0; stage < shape.pp; ++stage) {
    const WorkList work = step_work(config, coordinate_of_stage(config, stage), processor_of(machine));
    for (const WorkRow& row : work.rows()) {
      auto found = std::ranges::find(kernels, row.kernel, &KernelTotal::kernel);
      if (found == kernels.end()) found = kernels.insert(found, {.kernel = row.kernel});
      const double seconds = crowding(config, machine) * row_seconds(row, machine);
      found->add(row, seconds);
      all.add(row, seconds);
    }
    waits = std::max(waits, work.waits());
  }
  std::ranges::sort(kernels, std::greater(), &KernelTotal::seconds);
  const std::string whose = shape.pp > 1 ? fmt::format("the mean of {} stages", shape.pp) : "a rank";
  std::string text =
      fmt::format("roofline of {} (cp {}, tp 0) on {}, without communication:\n", whose, shape.cp - 1, machine.name);
  text += fmt::format("  {:<26}{:>8}{:>10}{:>11}{:>11}{:>11}{:>11}\n", "kernel", "calls", "launches", "GiB", "TFLOP",
                      "ms", "share");
  for (const KernelTotal& k : kernels) text += line_of(k, all.seconds, shape.pp);
  text += line_of(all, all.seconds, shape.pp);
  return text + fmt::format("  {} wait{} of the host\n", waits, waits == 1 ? "" : "s");
}

// The calls of Trainer::train_step, in its order, from one update to the next: gathers of updated weights begin the
// list, since the next forward runs beside them, and so does an update that has it beside it.
WorkList step_work(const deck::Config& config, const comm::GridCoordinate& at, Processor processor, EventOrder order) {
  WorkList work(order);
  with_scalar_type(config.precision.compute, [&]<class T>(std::type_identity<T>) {
    comm::ProcessGrid grid = comm::ProcessGrid::planned(comm::shape_of(config), at, &work);
    Timers timers;
    Device device = Device::planning(timers, gemm_mode_of(config), processor, &work);
    Arena arena = Arena::planning(processor);
    TrainingState<T> state(config, grid, device, arena);
    const nn::ParameterBuffers<T>& p = state.model.parameters();
    const auto schedule = make_forward_backward<T>(config, grid, device, state);
    if (state.updates_beside_forward) state.queue_update(device, 1.0);
    state.refresh_weights();
    state.begin_step();
    schedule->forward_backward(1.0);
    state.reducers.finish();
    schedule->all_reduce_tied_gradients();
    const auto statistics = make_statistics_monitor(config, grid, device, state);
    statistics->start(static_cast<index_t>(state.loss_rows.size()));
    work.add_finish();
    state.decision.decide(device, state.loss_rows, p.gradient, {});
    if (!state.updates_beside_forward) state.queue_update(device, 1.0);
    work.add_finish();
    device.fence();  // of UpdateDecision::read
    statistics->after_update();
  });
  return work;
}

}  // namespace nanotron::trainer
