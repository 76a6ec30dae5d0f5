#include "nanotron/trainer/checkpoint/checkpoint_times.hpp"

#include <algorithm>
#include <cmath>

#include "nanotron/base/timer.hpp"
#include "nanotron/comm/collectives.hpp"

namespace nanotron::trainer {
namespace {

constexpr double seconds_per_day = 86400.0, first_cost = 30.0;

}  // namespace

double best_interval(double cost, double between_failures) {
  const double half = cost / (2.0 * between_failures);
  if (half >= 1.0) return between_failures;
  return std::sqrt(2.0 * cost * between_failures) * (1.0 + std::sqrt(half) / 3.0 + half / 9.0) - cost;
}

std::string unsaved_text(const deck::CheckpointConfig& c) {
  if (c.every_steps > 0 || c.every_minutes > 0.0 || c.node_mtbf > 0.0 || c.neighbour_every_steps > 0) return "";
  return "no checkpoint is written before the end, so a killed run starts from scratch; set checkpoint%every_minutes, "
         "every_steps or node_mtbf";
}

CheckpointTimes::CheckpointTimes(const deck::CheckpointConfig& config, int nodes, Log& log)
    : every_steps_(config.every_steps),
      seconds_(60.0 * config.every_minutes),
      between_failures_(config.node_mtbf * seconds_per_day / nodes),
      since_(wall_seconds()),
      log_(log) {
  if (between_failures_ > 0.0) seconds_ = best_interval(first_cost, between_failures_);
}

bool CheckpointTimes::is_due(comm::Group& world, std::int64_t step) {
  const bool by_steps = every_steps_ > 0 && step % every_steps_ == 0;
  if (seconds_ <= 0.0) return by_steps;
  const bool by_time = world.rank() == 0 && wall_seconds() - since_ >= seconds_;
  return comm::max(world, static_cast<std::int64_t>(by_time)) != 0 || by_steps;
}

void CheckpointTimes::begin() { since_ = wall_seconds(); }

// The first step of a start does not count.
void CheckpointTimes::record_step(double seconds, index_t samples, bool beside) {
  const double each = seconds / static_cast<double>(samples);
  if (!beside) {
    plain_seconds_ = plain_steps_++ < 2 ? each : plain_seconds_ + 0.1 * (each - plain_seconds_);
  } else if (plain_steps_ > 1) {
    slower_ += seconds - plain_seconds_ * static_cast<double>(samples);
  }
}

void CheckpointTimes::drop() { cost_ = slower_ = 0.0; }

void CheckpointTimes::record(const SavedCheckpoint& saved) {
  const double cost = saved.waited + cost_ + std::max(slower_, 0.0);
  drop();
  if (between_failures_ <= 0.0 || cost <= 0.0) return;
  seconds_ = best_interval(cost, between_failures_);
  if (std::abs(seconds_ - told_) <= 0.1 * told_) return;
  told_ = seconds_;
  log_.info(
      "checkpoints every {:.1f} min from now on: one costs training {:.1f} s, and the nodes of this run fail every "
      "{:.1f} h (checkpoint%node_mtbf)",
      seconds_ / 60.0, cost, between_failures_ / 3600.0);
}

}  // namespace nanotron::trainer
