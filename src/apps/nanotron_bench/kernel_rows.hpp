#pragma once

// The table of kernels: a row for each, measured on all ranks at once.

#include <fmt/format.h>

#include "attention.hpp"
#include "benches.hpp"
#include "nanotron/kernels/gemm/peak/gemm_peak.hpp"
#include "nanotron/tensor/work.hpp"
#include "nanotron/trainer/state/training_state.hpp"

namespace nanotron::apps::bench {

template <class T>
class KernelRows {
 public:
  explicit KernelRows(const Bench& bench)
      : bench_(bench),
        device_(timers_),
        in_layers_(bench.sizes().layers * bench.micro_batches()),
        gemm_workspace_("gemm_workspace", gemm_workspace_bytes<T>(bench.sizes())) {
    device_.set_gemm_workspace(Vector<std::byte>(gemm_workspace_.data(), gemm_workspace_.size()));
    Timers timers;
    Device gemms(timers);
    const index_t order = kernels::gemm_peak_order<T>(gemms);
    comm::barrier(bench_.grid.world());
    gemm_rate_ = kernels::gemm_peak<T>(gemms, order, bench_.options.seconds);
  }

  const Bench& bench() const { return bench_; }
  Device& device() { return device_; }
  index_t in_layers() const { return in_layers_; }  // calls per step of what each layer does once
  const Table& table() const { return table_; }

  static double bytes(index_t n, std::size_t size) { return static_cast<double>(n) * static_cast<double>(size); }

  // A kernel that moves `moved` bytes when everything is read and written once.
  template <class Work>
  void by_bytes(const char* name, index_t calls, double moved, Work&& work) {
    const Spread s = seconds(work);
    const double rate = moved / s.median / 1e9;
    const double copy = copy_rate(bench_, device_, moved) / 1e9;
    table_.rows.push_back({name,
                           calls,
                           moved / 1e6,
                           s.median * 1e6,
                           s.min * 1e6,
                           s.max * 1e6,
                           rate,
                           copy,
                           {},
                           {},
                           100.0 * rate / copy,
                           s.median * static_cast<double>(calls) * 1e3});
  }
  // One that a part of the model launches: its name and its bytes are those that --plan counts.
  template <class Work>
  void by_plan(index_t calls, Work&& work) {
    WorkList list;
    Device planning = Device::planning(timers_, device_.gemm_mode(), built_for, &list);
    work(planning);
    double moved = 0.0;
    for (const WorkRow& row : list.rows()) moved += static_cast<double>(row.calls) * row.work.bytes();
    const std::string name(list.rows().front().kernel);
    by_bytes(name.c_str(), calls, moved, [&] { work(device_); });
  }
  // One whose rate is compared with the GEMM peak.
  template <class Work>
  void by_operations(const char* name, index_t calls, double operations, Work&& work) {
    const Spread s = seconds(work);
    const double rate = operations / s.median;
    table_.rows.push_back({name,
                           calls,
                           {},
                           s.median * 1e6,
                           s.min * 1e6,
                           s.max * 1e6,
                           {},
                           {},
                           rate / 1e9,
                           gemm_rate_ / 1e9,
                           100.0 * rate / gemm_rate_,
                           s.median * static_cast<double>(calls) * 1e3});
  }

 private:
  template <class Work>
  Spread seconds(Work&& work) {
    return seconds_of(device_, bench_.grid.world(), bench_.options.seconds / 2, work);
  }

  const Bench& bench_;
  Timers timers_;
  Device device_;
  index_t in_layers_;
  Kokkos::View<std::byte*, MemorySpace> gemm_workspace_;
  double gemm_rate_ = 0.0;
  Table table_{.key = fmt::format("kernels_{}", name_of(scalar_type_of<T>)),
               .title = fmt::format("Kernels of rank 0 in {}, all ranks at once", name_of(scalar_type_of<T>)),
               .columns = {{"kernel", "kernel"},
                           {"calls/step", "calls"},
                           {"MB", "megabytes"},
                           {"us", "us"},
                           {"min", "us_least"},
                           {"max", "us_most"},
                           {"GB/s", "gbs"},
                           {"copy GB/s", "copy_gbs"},
                           {"GFLOP/s", "gflops"},
                           {"GEMM GFLOP/s", "gemm_gflops"},
                           {"share %", "share"},
                           {"ms/step", "ms_per_step", 2}},
               .rows = {},
               .note = "share: relative to a copy of the same number of bytes, or to the measured GEMM peak"};
};

// The kernels of a feed-forward block that routes tokens, and those between the projections and attention where keys
// are compressed; false where the model has none.
template <class T>
bool add_routed_kernels(KernelRows<T>& rows);
template <class T>
bool add_compressed_kernels(KernelRows<T>& rows);

// What the model adds to the denominator of attention's softmax, if anything.
template <class T>
void add_denominator_kernels(KernelRows<T>& rows);

}  // namespace nanotron::apps::bench
