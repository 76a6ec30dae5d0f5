#include "nanotron/trainer/loop/save_request.hpp"

#include <system_error>
#include <utility>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/base/process.hpp"
#include "nanotron/base/timer.hpp"

namespace nanotron::trainer {

SaveRequest::SaveRequest(const std::filesystem::path& output_dir, Log& log) : file_(output_dir / "SAVE"), log_(log) {}

bool SaveRequest::is_open(bool looks_at_files) {
  if (save_signal_came()) (answered_by_ == 0 ? came_ : again_) = true;
  is_open_ = answered_by_ == 0 && (came_ || (looks_at_files && looks_ && file_is_there()));
  return is_open_;
}

bool SaveRequest::file_is_there() {
  const double now = wall_seconds();
  if (now < next_look_) return false;
  next_look_ = now + 1.0;
  try {
    const bool found = files::kind_of_name(file_) != files::Kind::nothing;
    failed_ = false;
    return found;
  } catch (const Error& error) {
    if (!std::exchange(failed_, true)) log_.warn("no look for the request of a checkpoint: {}", reason(error));
  }
  return false;
}

void SaveRequest::answer_with(std::int64_t step) {
  if (!is_open_ && !again_) return;
  answered_by_ = step;
  came_ = std::exchange(again_, false) || came_;
}

void SaveRequest::saved(std::int64_t step) {
  if (answered_by_ == 0 || step < answered_by_) return;
  answered_by_ = 0;
  came_ = std::exchange(again_, false);
  if (!log_.is_writer() || !looks_) return;
  std::error_code error;
  std::filesystem::remove(file_, error);
  if (!error) return;
  looks_ = false;
  log_.warn("{} cannot be removed and asks the next start for a checkpoint too: {}", file_.string(), error.message());
}

void SaveRequest::rolled_back_to(std::int64_t step) {
  if (answered_by_ <= step) return;
  answered_by_ = 0;
  came_ = std::exchange(again_, false) || came_;
}

}  // namespace nanotron::trainer
