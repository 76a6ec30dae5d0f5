#include "nanotron/trainer/hang/watchdog.hpp"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <string_view>

#include "hang_case.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/timer.hpp"
#include "nanotron/comm/session/mpi_session.hpp"

namespace nanotron::trainer {
namespace {

constexpr double steps_allowed = 10.0, allowed_with_files = 3.0;
constexpr double quiet_for = 5.0;  // s

}  // namespace

double allowance(const FlightSnapshot& snapshot, std::int64_t steps_done) {
  constexpr std::array<std::string_view, 5> patient{"checkpoint", "resume", "validation", "load tokens", "output"};
  if (steps_done == 0) return allowed_with_files;
  const bool is_patient = std::ranges::any_of(snapshot.regions, [&](const char* region) {
    return region != nullptr && std::ranges::find(patient, std::string_view(region)) != patient.end();
  });
  return is_patient ? allowed_with_files : 1.0;
}

double hang_limit(double timeout, const FlightSnapshot& snapshot) {
  return std::max(timeout, steps_allowed * 1e-9 * static_cast<double>(snapshot.longest_step));
}

double quiet_limit(const FlightSnapshot& snapshot) {
  return std::max(quiet_for, 3e-9 * static_cast<double>(snapshot.longest_step));
}

void remove_old_hang_reports(const std::filesystem::path& output_dir) { put_aside_hang_folder(output_dir); }

Watchdog::Watchdog(WatchdogSetup setup)
    : timeout_(setup.timeout),
      tick_(std::clamp(setup.timeout / 20.0, 0.05, 1.0)),
      rank_(setup.rank),
      allowed_(allowed_with_files * setup.timeout),
      quiet_after_(quiet_for),
      case_(std::make_unique<HangCase>(std::move(setup), static_cast<int>(::syscall(SYS_gettid)))) {
  flight_recorder().turn(true);
  counter_ = std::thread([this] { count(); });
  attendant_ = std::thread([this] { attend(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    ending_.store(true, std::memory_order_release);
  }
  ended_.notify_all();
  counter_.join();
  attendant_.join();
  flight_recorder().turn(false);
}

void Watchdog::wait_for_tick() {
  std::unique_lock lock(mutex_);
  ended_.wait_for(lock, std::chrono::duration<double>(tick_), [this] { return is_ending(); });
}

// No files and, while anything moves, no more than two loads: a rank must not be slowed down by being watched.
void Watchdog::count() {
  FlightRecorder& recorder = flight_recorder();
  std::uint64_t events = recorder.events(), rounds = rounds_.load();
  std::int64_t steps = recorder.steps_done();
  double last = wall_seconds(), step_ended = last, idle = 0.0, held = 0.0;
  while (!is_ending()) {
    wait_for_tick();
    const double now = wall_seconds();
    const double counted = std::min(now - last, 2.0 * tick_);  // more: this process was stopped
    if (now - last > counted) recorder.was_stopped(static_cast<std::int64_t>(1e9 * (now - last - counted)));
    last = now;
    if (recorder.steps_done() != steps) {
      steps = recorder.steps_done();
      step_ended = now;
    }
    step_idle_.store(now - step_ended);
    idle = recorder.events() == events ? idle + counted : 0.0;
    events = recorder.events();
    if (idle > std::min(timeout_ / 2.0, quiet_for)) {
      const FlightSnapshot snapshot = recorder.snapshot();
      allowed_.store(hang_limit(timeout_, snapshot) * allowance(snapshot, steps));
      quiet_after_.store(quiet_limit(snapshot));
    }
    idle_.store(idle);
    held = (idle > allowed_.load() || recorder.waits_for_verdict()) && rounds_.load() == rounds ? held + counted : 0.0;
    rounds = rounds_.load();
    if (held > file_patience && !is_ending()) {
      std::fputs(fmt::format("[rank {}] error: no progress, and the file system does not respond\n", rank_).c_str(),
                 stderr);
      comm::MpiSession::abort_beside(ExitCode::system_error);
    }
  }
}

void Watchdog::attend() {
  while (!is_ending()) {
    wait_for_tick();
    rounds_.fetch_add(1);
    if (is_ending()) break;
    case_->attend({.idle = idle_.load(),
                   .allowed = allowed_.load(),
                   .of_step = step_idle_.load(),
                   .quiet_after = quiet_after_.load(),
                   .has_failed = flight_recorder().waits_for_verdict()});
  }
  case_->close();
}

}  // namespace nanotron::trainer
