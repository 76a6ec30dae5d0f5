#include "nanotron/trainer/report/start_clock.hpp"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <limits>

#include "nanotron/base/timer.hpp"

namespace nanotron::trainer {
namespace {

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Of the first variable that is a time; NaN: of none.
double time_in(std::initializer_list<const char*> variables) {
  for (const char* variable : variables) {
    const char* const text = std::getenv(variable);
    if (text == nullptr) continue;
    char* end = nullptr;
    const double value = std::strtod(text, &end);
    if (end != text && *end == 0 && std::isfinite(value) && value > 0.0) return value;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

void StartClock::enter(Kind kind) {
  const double now = wall_seconds();
  if (kind_ == Kind::training) training_ += now - since_;
  if (kind_ == Kind::checkpoint) checkpoint_ += now - since_;
  since_ = now;
  kind_ = kind;
}

double StartClock::kept_seconds() {
  enter(kind_);
  return training_ - left_out_;
}

double StartClock::kept_until(std::int64_t step) const {
  const auto found = kept_until_.find(step);
  return found == kept_until_.end() ? 0.0 : found->second;
}

void StartClock::write(io::StartRow& row) {
  enter(kind_);
  row.last = seconds_since_1970();
  row.training_seconds = training_;
  row.checkpoint_seconds = checkpoint_;
  row.left_out_seconds = left_out_;
}

io::StartRow start_row(double begin) {
  const double now = seconds_since_1970();
  return {.begin = now - (wall_seconds() - begin),
          .last = now,
          .submitted = time_in({"NANOTRON_SUBMIT_TIME"}),
          .job_began = time_in({"NANOTRON_JOB_START_TIME", "SLURM_JOB_START_TIME"}),
          .last_step = -1,
          .lowest_step = std::numeric_limits<std::int64_t>::max()};
}

}  // namespace nanotron::trainer
