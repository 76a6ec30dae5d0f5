#pragma once

// Statistics of the routers of a mixture of experts in a step, over all ranks.

#include <memory>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::trainer {

/// Of a step; all 0 for a dense model. See doc/numerics.md.
struct RouterNumbers {
  double load_balance = 0.0;   // mean over layers and sequences, without its coefficient; 1: even load
  double z = 0.0;              // mean over layers and tokens of z^2, without its coefficient
  double dropped_share = 0.0;  // dropped choices / all choices
  double busiest_share = 0.0;  // max over layers and experts of (choices of the expert) / (choices of the layer)
};

class RouterMonitor {
 public:
  virtual ~RouterMonitor() = default;
  /// Queues the copy to the host of the statistics since the last call.
  virtual void start() = 0;
  /// What was copied, after a wait for the device. Collective over the world, the same on all ranks.
  virtual RouterNumbers collect() = 0;
};

/// config is resolved. sums: model::Transformer::router_sums, set to zero by start. On a planning device start counts
/// its kernel. grid and device must outlive it.
std::unique_ptr<RouterMonitor> make_router_monitor(const deck::Config& config, comm::ProcessGrid& grid, Device& device,
                                                   Matrix<double> sums);

}  // namespace nanotron::trainer
