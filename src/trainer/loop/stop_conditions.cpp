#include "nanotron/trainer/loop/stop_conditions.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/base/process.hpp"
#include "nanotron/base/timer.hpp"

namespace nanotron::trainer {
namespace {

// Until the end of the job, by the scheduler's environment; nothing where that does not say.
std::optional<double> scheduler_seconds_left() {
  const char* const end = std::getenv("SLURM_JOB_END_TIME");
  std::int64_t at = 0;
  if (end == nullptr) return std::nullopt;
  const auto [stop, error] = std::from_chars(end, end + std::strlen(end), at);
  if (error != std::errc() || *stop != 0 || at <= 0) return std::nullopt;
  return static_cast<double>(at - static_cast<std::int64_t>(std::time(nullptr)));
}

}  // namespace

std::string describe(StopReason reason) {
  switch (reason) {
    case StopReason::none:
      return "none";
    case StopReason::step_limit:
      return "run%stop_after_steps reached";
    case StopReason::stop_file:
      return "file STOP found in the run directory";
    case StopReason::wall_time:
      return "run%wall_time_limit is near";
    case StopReason::signal:
      return "a signal asked for it";
  }
  return "";
}

deck::RunConfig with_deadline(deck::RunConfig run, double start, Log& log) {
  const std::optional<double> left = scheduler_seconds_left();
  if (run.wall_time_limit > 0.0 || !left) return run;
  if (*left <= 0.0) {
    log.warn(
        "SLURM_JOB_END_TIME was {:.0f} s ago, as in an extended job, or in a shell of another job: this run "
        "has no time limit; run%wall_time_limit sets one",
        -*left);
    return run;
  }
  run.wall_time_limit = std::max(wall_seconds() - start + *left, 1e-3);
  log.info("the job ends in {:.0f} s (SLURM_JOB_END_TIME): the run writes a checkpoint and stops {:.0f} s before",
           *left, run.wall_time_margin);
  return run;
}

StopConditions::StopConditions(const deck::RunConfig& run, double start)
    : stop_file_(std::filesystem::path(run.output_dir) / "STOP"),
      step_limit_(run.stop_after_steps),
      deadline_(run.wall_time_limit > 0.0 ? start + run.wall_time_limit - run.wall_time_margin : 0.0) {}

StopReason StopConditions::seen_here(bool looks_at_files, std::int64_t steps_done, double next_seconds) {
  const bool found = looks_at_files && file_was_found();
  if (stop_signal_came()) return StopReason::signal;
  if (deadline_ > 0.0 && wall_seconds() + next_seconds > deadline_) return StopReason::wall_time;
  if (found) return StopReason::stop_file;
  if (step_limit_ > 0 && steps_done >= step_limit_) return StopReason::step_limit;
  return StopReason::none;
}

bool StopConditions::file_was_found() {
  try {
    file_was_found_ = files::kind_of_name(stop_file_) != files::Kind::nothing || file_was_found_;
  } catch (const Error&) {  // looked for again after the next step, and by the next start
  }
  return file_was_found_;
}

void StopConditions::remove_file(Log& log) {
  std::error_code error;
  std::filesystem::remove(stop_file_, error);
  if (error) log.warn("{} cannot be removed and stops the next start too: {}", stop_file_.string(), error.message());
}

// One number for both. A stop hides a request of another rank: it ends with a checkpoint, which answers all.
Seen StopConditions::check(comm::Group& world, std::int64_t steps_done, double next_seconds, bool save) {
  const auto stop = static_cast<std::int64_t>(seen_here(world.rank() == 0, steps_done, next_seconds));
  const std::int64_t seen = comm::max_and_check_call_order(world, 2 * stop + (save ? 1 : 0));
  return {static_cast<StopReason>(seen / 2), seen % 2 != 0};
}

}  // namespace nanotron::trainer
