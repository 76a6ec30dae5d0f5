#include "nanotron/trainer/start/train.hpp"

#include "nanotron/base/error.hpp"
#include "nanotron/base/log.hpp"
#include "nanotron/io/files/run_status.hpp"

namespace nanotron::trainer {

void LastWords::belong_to(const std::filesystem::path& output_dir, const std::filesystem::path& status) {
  log_ = output_dir / "run.log";
  status_ = status;
}

void LastWords::tell(int exit_code, const std::string& message) const {
  if (log_.empty()) return;
  Log log(true);
  log.set_quiet(true);
  try {
    log.open(log_);
    log.info("{}\nended with exit code {}", message, exit_code);
  } catch (const Error&) {  // the message is on stderr
  }
  io::mark_failed(status_, exit_code, message);
}

}  // namespace nanotron::trainer
