#include "nanotron/trainer/progress.hpp"

#include <fmt/format.h>

#include <limits>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/validation_sets.hpp"
#include "nanotron/io/checkpoint.hpp"

namespace nanotron::trainer {
namespace {

std::string clock_text(double seconds) {
  const auto s = static_cast<std::int64_t>(seconds + 0.5);
  return s >= 86400 ? fmt::format("{}d {:02}:{:02}h", s / 86400, s / 3600 % 24, s / 60 % 60)
                    : fmt::format("{:02}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

std::string rate_text(double tokens_per_second) {
  if (tokens_per_second >= 1e6) return fmt::format("{:.2f}M", tokens_per_second / 1e6);
  if (tokens_per_second >= 1e4) return fmt::format("{:.1f}k", tokens_per_second / 1e3);
  return fmt::format("{:.0f}", tokens_per_second);
}

// Empty for a dense model.
std::string router_text(const deck::MoeConfig& moe, const RouterNumbers& r) {
  if (moe.num_experts == 0) return "";
  const std::string dropped =
      moe.capacity_factor > 0.0 ? fmt::format("  dropped {:.1f} %", 100.0 * r.dropped_share) : "";
  return fmt::format("  load balance {:.3f}  z^2 {:.2f}  busiest expert {:.1f} %{}", r.load_balance, r.z,
                     100.0 * r.busiest_share, dropped);
}

}  // namespace

Progress::Progress(const deck::Config& config, const StepCost& cost, std::unique_ptr<io::MetricsFile> metrics,
                   io::RunStatus& status, Log& log)
    : config_(config),
      cost_(cost),
      validation_sets_(deck::validation_set_names(config.data.validation_path)),
      metrics_(std::move(metrics)),
      status_(status),
      log_(log) {}

template <class Work>
void Progress::with_metrics(const Work& work) {
  if (!metrics_) return;
  try {
    work(*metrics_);
  } catch (const Error& error) {
    log_.warn("no metrics from here on: {}", reason(error));
    metrics_.reset();
  }
}

void Progress::record(std::int64_t step, std::int64_t tokens_seen, double seconds,
                      const StepResult& r) {
  // The first step of a run also touches memory and builds primitives. The average restarts at steps 2, 66, 130, ...
  const bool first = ++steps_ == 1;
  const bool last = step == config_.run.steps || steps_ == config_.run.stop_after_steps;
  loss_ = r.loss;
  recent_seconds_ = first || step % 64 == 2 ? seconds : recent_seconds_ + 0.1 * (seconds - recent_seconds_);
  const double tokens_per_second = cost_.tokens / seconds;
  const auto mfu = [&](double step_seconds) {
    return cost_.stated_peak > 0.0 ? cost_.flops / step_seconds / cost_.stated_peak
                                   : std::numeric_limits<double>::quiet_NaN();
  };
  if (step % config_.output.metrics_every == 0 || step == config_.run.steps) {
    with_metrics([&](io::MetricsFile& metrics) {
      metrics.append({.step = step,
                      .loss = r.loss,
                      .grad_norm = r.grad_norm,
                      .learning_rate = r.learning_rate,
                      .seconds = seconds,
                      .tokens_per_second = tokens_per_second,
                      .mfu = mfu(seconds),
                      .gemm_fraction = cost_.flops / seconds / cost_.gemm_peak,
                      .tokens = tokens_seen,
                      .token_hash = r.token_hash,
                      .router_load_balance = r.router.load_balance,
                      .router_z = r.router.z,
                      .dropped_share = r.router.dropped_share,
                      .busiest_expert_share = r.router.busiest_share});
    });
  }
  if (first || last || step % config_.run.log_every == 0) {
    const double left = recent_seconds_ * static_cast<double>(config_.run.steps - step);
    const std::string utilisation =
        cost_.stated_peak > 0.0 ? fmt::format("  mfu {:4.1f} %", 100.0 * mfu(recent_seconds_)) : "";
    log_.info(
        "step {:>7}/{}  loss {:.4f}  grad norm {:.3f}  lr {:.2e}  {:>6} tokens/s{}  {:4.1f} % of GEMM peak  "
        "ETA {}{}",
        step, config_.run.steps, r.loss, r.grad_norm, r.learning_rate, rate_text(cost_.tokens / recent_seconds_),
        utilisation, 100.0 * cost_.flops / recent_seconds_ / cost_.gemm_peak, clock_text(left),
        router_text(config_.model.moe, r.router));
  }
}

void Progress::record_validation(std::int64_t step, std::span<const double> losses) {
  with_metrics([&](io::MetricsFile& metrics) { metrics.append_validation(step, losses); });
  validation_loss_.clear();
  for (std::size_t i = 0; i < losses.size(); ++i) {
    validation_loss_ += i < validation_sets_.size() ? fmt::format("  {} {:.4f}", validation_sets_[i], losses[i])
                                                    : fmt::format(" {:.4f}", losses[i]);
  }
  log_.info("step {:>7}/{}  validation loss{}", step, config_.run.steps, validation_loss_);
}

std::string Progress::summary() const {
  std::string text = steps_ == 0 ? "" : fmt::format("loss {:.4f}", loss_);
  if (!validation_loss_.empty()) text += fmt::format("{}validation loss{}", text.empty() ? "" : ", ", validation_loss_);
  return text;
}

void Progress::record_checkpoint(std::int64_t step, double seconds) {
  status_.add_checkpoint(step, io::step_folder(deck::checkpoint_directory(config_), step));
  log_.info("step {:>7}/{}  checkpoint written in {:.1f} s", step, config_.run.steps, seconds);
}

void Progress::flush() {
  with_metrics([](io::MetricsFile& metrics) { metrics.flush(); });
}

}  // namespace nanotron::trainer
