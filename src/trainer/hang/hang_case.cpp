#include "hang_case.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <thread>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/base/rank_ranges.hpp"
#include "nanotron/base/timer.hpp"
#include "nanotron/comm/session/mpi_session.hpp"
#include "nanotron/comm/watch/recorded_groups.hpp"
#include "nanotron/io/files/run_status.hpp"

namespace nanotron::trainer {
namespace {

constexpr double leader_patience = 30.0;  // s, until another rank takes the place of a leader that writes nothing
constexpr double renewal = 2.0;           // s
constexpr double confirmation = 0.5;      // s, after which a verdict must be the same

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// At once, without locks that another thread of this process may hold.
void append(int descriptor, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t put = ::write(descriptor, text.data() + done, text.size() - done);
    if (put <= 0) return;
    done += static_cast<std::size_t>(put);
  }
}

std::vector<int> ranks_of(const HangVerdict& verdict) {
  std::vector<int> ranks;
  for (const Culprit& culprit : verdict.culprits) ranks.push_back(culprit.rank);
  return ranks;
}

}  // namespace

HangCase::HangCase(WatchdogSetup setup, int run_thread)
    : setup_(std::move(setup)),
      folder_(setup_.output_dir),
      run_thread_(run_thread),
      asking_(std::clamp(setup_.timeout / 8.0, 0.25, 2.0)) {}

void HangCase::attend(const Idleness& now) {
  // First: once some ranks have ended, a stopped one may be continued by the launcher, and others move again.
  if (has_reported_ && folder_.has_verdict()) ::_exit(static_cast<int>(ExitCode::system_error));
  if (has_reported_ && flight_recorder().events() != events_) withdraw();
  if (!now.is_late()) mute_since_ = 0.0;
  if (now.is_late() && !was_late_) {
    report(now);
  } else if (!has_reported_ && is_asked(now)) {
    report(now);
  }
  if (!was_late_) return;
  if (!leads_ && folder_.claim_lead(setup_.rank)) {
    leads_ = true;
    led_since_ = last_new_ = wall_seconds();
    seen_ = 0;
    suspects_.clear();
  }
  leads_ ? lead(now) : follow();
}

void HangCase::close() {
  if (has_reported_) withdraw();
}

void HangCase::report(const Idleness& now) {
  const FlightRecorder& recorder = flight_recorder();
  events_ = recorder.events();
  RankReport report = report_of(recorder.snapshot(), FlightRecorder::now());
  report.rank = setup_.rank;
  report.host = setup_.hosts[static_cast<std::size_t>(setup_.rank)];
  report.time = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  report.is_late = now.is_late();
  report.has_failed = now.has_failed;
  report.idle = now.idle;
  report.allowed = now.allowed;
  report.system_call = file_call_of(run_thread_);
  report.network = links_.lost();
  if (const std::string error = comm::asynchronous_error(); !error.empty()) report.where += " > " + error;
  if (!folder_.write(report)) {
    if (now.is_late()) handle_unwritable_report();
    return;
  }
  has_reported_ = true;
  was_late_ = now.is_late();
  mute_since_ = 0.0;
}

// The file system is full, say. Nobody will judge: this rank ends the run.
void HangCase::handle_unwritable_report() {
  if (mute_since_ == 0.0) mute_since_ = wall_seconds();
  if (wall_seconds() - mute_since_ < file_patience) return;
  append(STDERR_FILENO,
         format({.what = fmt::format("no progress on rank {}, and its report cannot be written", setup_.rank),
                 .expected = "a report of each late rank, from which the cause is found",
                 .where = folder_.path().string(),
                 .change = "check space, quota and permissions of run%output_dir; the same command resumes from the "
                           "newest checkpoint"}) +
             "\n");
  comm::MpiSession::abort_beside(ExitCode::system_error);
}

void HangCase::withdraw() {
  if (leads_) folder_.give_up_lead();
  folder_.remove(setup_.rank);
  has_reported_ = was_late_ = leads_ = false;
  leader_.clear();
}

// A step that ends in time needs no look at the file system.
bool HangCase::is_asked(const Idleness& now) {
  const bool looks = now.of_step >= setup_.timeout / 2.0 || now.idle > now.quiet_after;
  if (!looks || wall_seconds() - asked_at_ < asking_) return false;
  asked_at_ = wall_seconds();
  return !folder_.leader().empty();
}

// A rank within its limit may still make progress: wait for it, up to three more limits, unless this one cannot.
bool HangCase::is_conclusive(const HangVerdict& verdict, const std::map<int, RankReport>& reports,
                             const Idleness& now) const {
  if (now.has_failed && reports.size() == setup_.hosts.size()) return true;
  const auto is_overdue = [&](const RankReport& r) {
    return r.is_late || wall_seconds() - led_since_ > 3.0 * std::max(r.allowed, now.allowed);
  };
  if (verdict.culprits.empty()) {
    return std::ranges::all_of(reports, [&](const auto& item) { return is_overdue(item.second); });
  }
  return std::ranges::all_of(
      verdict.culprits, [&](const Culprit& c) { return c.cause == Cause::silent || is_overdue(reports.at(c.rank)); });
}

// Waits for the reports of the others as long as new ones come, judges, and judges again: what was said of ranks that
// made progress meanwhile does not count.
void HangCase::lead(const Idleness& now) {
  const double begin = wall_seconds();
  if (begin - led_since_ > static_cast<double>(round_ + 1) * renewal) folder_.renew_lead(setup_.rank, ++round_);
  if (const std::size_t reports = folder_.number_of_reports(); reports != seen_) {
    seen_ = reports;
    last_new_ = begin;
    suspects_.clear();
  }
  // A rank that has failed is early: the others look for it once they are quiet.
  const double grace = 2.0 * asking_ + 1.0 + (now.has_failed ? 2.0 * now.quiet_after : 0.0);
  if (seen_ < setup_.hosts.size() && begin - last_new_ < grace) return;
  if (begin - judged_at_ < std::max(confirmation, 10.0 * judging_)) return;

  const std::map<int, RankReport> reports = folder_.reports();
  const HangVerdict verdict = judge(reports, setup_.hosts, [&](int rank) { return folder_.operations_of(rank); });
  judged_at_ = wall_seconds();
  judging_ = judged_at_ - begin;
  const bool is_new = suspects_.empty() || suspects_ != ranks_of(verdict);
  suspects_ = ranks_of(verdict);
  if (suspects_.empty()) suspects_.push_back(-1);
  if (!is_conclusive(verdict, reports, now) || (is_new && verdict.culprits.size() > 0)) return;
  if (flight_recorder().events() == events_) announce(verdict);
}

// Another leader is needed where the first was stopped or killed too.
void HangCase::follow() {
  const std::string leader = folder_.leader();
  if (leader != leader_ || leader_moved_ == 0.0) {
    leader_ = leader;
    leader_moved_ = wall_seconds();
  }
  if (wall_seconds() - leader_moved_ < leader_patience) return;
  folder_.give_up_lead();
  leader_moved_ = wall_seconds();
}

void HangCase::announce(const HangVerdict& verdict) {
  const std::vector<int> ranks = ranks_of(verdict);
  const std::string host = ranks.empty() ? "" : setup_.hosts[static_cast<std::size_t>(ranks.front())];
  const std::string who = ranks.empty()
                              ? "each rank waits for the others"
                              : fmt::format("{} {}{} {} late", ranks.size() > 1 ? "ranks" : "rank", ranks_text(ranks),
                                            ranks.size() > 1 ? fmt::format(", the first on {},", host) : " on " + host,
                                            ranks.size() > 1 ? "are" : "is");
  const bool differs = !ranks.empty() && verdict.culprits.front().cause == Cause::differs;
  const std::string text =
      format({.what = differs ? fmt::format("operations of ranks differ: {} {} on {} {} not do the same as the others",
                                            ranks.size() > 1 ? "ranks" : "rank", ranks_text(ranks), host,
                                            ranks.size() > 1 ? "do" : "does")
                              : "the run hangs: " + who,
              .expected = differs ? "the same operations, sizes and types in the same order on all ranks of a group"
                                  : fmt::format("progress on each rank within {:.4g} s, or three times as long at "
                                                "the start, with files and in validation (run%hang_timeout)",
                                                setup_.timeout),
              .found = verdict.text,
              .where = folder_.path().string(),
              .change =
                  fmt::format("{}the same command resumes from the newest checkpoint; nanotron-report --hang {} "
                              "shows what each rank did last",
                              host.empty() ? "" : fmt::format("check the host {}; ", host), folder_.path().string())}) +
      "\n";
  append(STDERR_FILENO, text);
  const int log = files::open_plain(setup_.output_dir / "run.log", O_WRONLY | O_APPEND);
  if (log >= 0) append(log, fmt::format("{}ended with exit code {}\n", text, static_cast<int>(ExitCode::system_error)));
  sleep_for(0.3);  // some launchers drop what is still in the pipe when the first rank ends
  folder_.publish(text);
  io::mark_failed(setup_.status, static_cast<int>(ExitCode::system_error), text);
  sleep_for(1.0 + 2.0 * asking_);  // the others see it and end by themselves
  comm::MpiSession::abort_beside(ExitCode::system_error);
}

}  // namespace nanotron::trainer
