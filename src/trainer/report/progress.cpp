#include "nanotron/trainer/report/progress.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "nanotron/base/error.hpp"
#include "nanotron/base/flight_recorder.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/named_files.hpp"
#include "nanotron/io/checkpoint/checkpoint.hpp"

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

}  // namespace

Progress::Progress(const deck::Config& config, const StepCost& cost, std::unique_ptr<io::MetricsFile> metrics,
                   io::RunStatus& status, Log& log, double begin)
    : config_(&config),
      cost_(cost),
      validation_sets_(deck::validation_set_names(config.data)),
      metrics_(std::move(metrics)),
      status_(status),
      log_(log),
      ramp_(config.data),
      clock_(begin),
      start_(start_row(begin)),
      exceptions_(std::uncaught_exceptions()) {}

Progress::~Progress() {
  if (std::uncaught_exceptions() > exceptions_ && metrics_) end(io::StartEnd::failed);
}

void Progress::enter(const deck::Config& stage, const StepCost& cost, const LaterStages& later) {
  full_seconds_ *= cost.flops / cost_.flops;
  recent_seconds_ = full_seconds_;
  config_ = &stage;
  cost_ = cost;
  later_ = later;
  ramp_ = data::BatchRamp(stage.data);
  is_first_ = true;
}

template <class Work>
void Progress::with_metrics(const Work& work) {
  if (!metrics_) return;
  try {
    work(*metrics_);
  } catch (const Error& error) {
    log_.warn("no further metrics: {}", reason(error));
    metrics_.reset();
  }
}

void Progress::record(const io::CheckpointState& now, double seconds, const StepResult& r) {
  const NotedRegion region("output");
  const std::int64_t step = now.step;
  const auto share = [&](index_t samples) {  // of global_batch_size
    return static_cast<double>(samples) / static_cast<double>(config_->data.global_batch_size);
  };
  const std::int64_t end = later_.from_step > 0 ? later_.from_step : config_->run.steps;
  const double left =
      share(ramp_.after(now.sample_cursor, end - step) - now.sample_cursor) + later_.flops / cost_.flops;
  // The first step of a stage also touches memory and builds primitives. The average restarts there, and at steps 2,
  // 66, 130, ...
  const bool first = ++steps_ == 1, restarts = std::exchange(is_first_, false) || step % 64 == 2;
  const bool last = step == config_->run.steps || steps_ == config_->run.stop_after_steps;
  loss_ = r.loss;
  const double full = seconds / share(r.samples);
  full_seconds_ = restarts ? full : full_seconds_ + 0.1 * (full - full_seconds_);
  recent_seconds_ = full_seconds_ * share(ramp_.at(now.sample_cursor));
  const auto mfu = [&](double step_seconds) {
    return cost_.stated_peak > 0.0 ? cost_.flops / step_seconds / cost_.stated_peak
                                   : std::numeric_limits<double>::quiet_NaN();
  };
  if (step % config_->output.metrics_every == 0 || step == config_->run.steps) {
    with_metrics([&](io::MetricsFile& metrics) {
      metrics.append({.step = step,
                      .loss = r.loss,
                      .grad_norm = r.grad_norm,
                      .learning_rate = r.learning_rate,
                      .seconds = seconds,
                      .tokens_per_second = cost_.tokens / full,
                      .mfu = mfu(full),
                      .gemm_fraction = cost_.flops / full / cost_.gemm_peak,
                      .tokens = now.tokens_seen,
                      .token_hash = r.token_hash,
                      .extra = r.statistics});
    });
  }
  write_start(step);
  if (first || last || step % config_->run.log_every == 0) {
    const std::string utilisation =
        cost_.stated_peak > 0.0 ? fmt::format("  mfu {:4.1f} %", 100.0 * mfu(full_seconds_)) : "";
    log_.info(
        "step {:>7}/{}  loss {:.4f}  grad norm {:.3f}  lr {:.2e}  {:>6} tokens/s{}  {:4.1f} % of GEMM peak  "
        "ETA {}{}",
        step, config_->run.steps, r.loss, r.grad_norm, r.learning_rate, rate_text(cost_.tokens / full_seconds_),
        utilisation, 100.0 * cost_.flops / full_seconds_ / cost_.gemm_peak, clock_text(full_seconds_ * left),
        statistics_text(*config_, r.statistics));
  }
}

void Progress::write_start(std::int64_t step) {
  start_.last_step = step;
  clock_.write(start_);
  with_metrics([&](io::MetricsFile& metrics) { metrics.update_start(start_); });
}

void Progress::end(io::StartEnd how) {
  start_.end = static_cast<std::int64_t>(how);
  write_start(start_.last_step);
  const NotedRegion region("output");
  with_metrics([](io::MetricsFile& metrics) { metrics.close(); });
  metrics_.reset();
}

void Progress::record_bad_step(const io::CheckpointState& now, const StepResult& r) {
  const NotedRegion region("output");
  if (r.rolled_back) {
    clock_.go_back(now.step);
    start_.lowest_step = std::min(start_.lowest_step, now.step);
    write_start(now.step);
  }
  with_metrics([&](io::MetricsFile& metrics) {
    if (r.rolled_back) metrics.drop_after(now.step);
    metrics.append_bad_step({.step = r.step,
                             .first_sample = r.first_sample,
                             .samples = r.samples,
                             .left_out_from = r.left_out_from,
                             .next_step = now.step + 1,
                             .token_hash = r.token_hash,
                             .loss = r.loss,
                             .grad_norm = r.grad_norm});
  });
}

void Progress::record_validation(std::int64_t step, std::span<const double> losses) {
  const NotedRegion region("output");
  with_metrics([&](io::MetricsFile& metrics) { metrics.append_validation(step, losses); });
  validation_loss_.clear();
  for (std::size_t i = 0; i < losses.size(); ++i) {
    validation_loss_ += i < validation_sets_.size() ? fmt::format("  {} {:.4f}", validation_sets_[i], losses[i])
                                                    : fmt::format(" {:.4f}", losses[i]);
  }
  log_.info("step {:>7}/{}  validation loss{}", step, config_->run.steps, validation_loss_);
}

std::string Progress::summary() const {
  std::string text = steps_ == 0 ? "" : fmt::format("loss {:.4f}", loss_);
  if (!validation_loss_.empty()) text += fmt::format("{}validation loss{}", text.empty() ? "" : ", ", validation_loss_);
  return text;
}

void Progress::record_checkpoint(const SavedCheckpoint& saved) {
  const NotedRegion region("output");
  with_metrics([&](io::MetricsFile& metrics) { metrics.append_checkpoint(saved.step, clock_.kept_until(saved.step)); });
  status_.add_checkpoint(saved.step, io::step_folder(deck::checkpoint_directory(*config_), saved.step), saved.taken);
  log_.info("step {:>7}/{}  checkpoint written in {:.1f} s{}", saved.step, config_->run.steps, saved.taken,
            saved.waited < saved.taken ? fmt::format(", of which training waited {:.1f} s", saved.waited) : "");
}

void Progress::record_copy(const SavedCheckpoint& copied, const std::filesystem::path& where) {
  const NotedRegion region("output");
  status_.add_copy(copied.step, where);
  log_.info("step {:>7}/{}  copied to other hosts in {:.2f} s", copied.step, config_->run.steps, copied.taken);
}

void Progress::flush() {
  const NotedRegion region("output");
  with_metrics([](io::MetricsFile& metrics) { metrics.flush(); });
}

}  // namespace nanotron::trainer
