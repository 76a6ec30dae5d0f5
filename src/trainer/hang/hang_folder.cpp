#include "hang_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "nanotron/base/error.hpp"
#include "nanotron/io/files/text_file.hpp"

namespace nanotron::trainer {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Whole or not at all: then false.
bool write_file(const fs::path& file, const std::string& text) { return io::replace_text(file, text) == 0; }

// No link: what it leads to may be anybody's.
bool is_own_folder(const fs::path& folder) {
  std::error_code error;
  return fs::symlink_status(folder, error).type() == fs::file_type::directory;
}

std::optional<RankReport> read_report(const fs::path& file, Read what) {
  try {
    return report_from(text_of(file), what);
  } catch (const Error&) {  // the file is gone or damaged
    return std::nullopt;
  }
}

bool is_report(const fs::path& file) {
  const std::string name = file.filename().string();
  return name.starts_with("rank_") && name.ends_with(".txt");
}

// Calls for files whose first argument is a descriptor.
const char* name_of_call(long number) {
  switch (number) {
    case SYS_read:
      return "read";
    case SYS_write:
      return "write";
    case SYS_pread64:
      return "pread";
    case SYS_pwrite64:
      return "pwrite";
    case SYS_readv:
      return "readv";
    case SYS_writev:
      return "writev";
    case SYS_preadv:
      return "preadv";
    case SYS_pwritev:
      return "pwritev";
    case SYS_fsync:
      return "fsync";
    case SYS_fdatasync:
      return "fdatasync";
    case SYS_ftruncate:
      return "ftruncate";
    case SYS_fallocate:
      return "fallocate";
    case SYS_close:
      return "close";
    case SYS_flock:
      return "flock";
    case SYS_fcntl:
      return "fcntl";
    default:
      return nullptr;
  }
}

std::string call_text(const std::string& line) {
  std::istringstream words(line);
  long number = -1;
  std::string first;
  if (!(words >> number >> first) || name_of_call(number) == nullptr) return "";
  std::error_code error;
  const auto descriptor = std::strtol(first.c_str(), nullptr, 16);
  const fs::path file = fs::read_symlink(fmt::format("/proc/self/fd/{}", descriptor), error);
  const bool is_file = !error && file.is_absolute() && !file.string().starts_with("/dev/");
  return is_file ? fmt::format("{} of {}", name_of_call(number), file.string()) : "";
}

}  // namespace

std::string file_call_of(int thread) {
  const std::string file = fmt::format("/proc/self/task/{}/syscall", thread), before = text_of(file);
  const std::string call = call_text(before);
  if (call.empty()) return "";
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  return text_of(file) == before ? call : "";
}

void put_aside_hang_folder(const fs::path& output_dir) {
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(output_dir / "hang", ignored))) return;
  fs::remove_all(output_dir / "hang.old", ignored);
  fs::rename(output_dir / "hang", output_dir / "hang.old", ignored);
}

HangFolder::HangFolder(const fs::path& output_dir) : path_(output_dir / "hang") {}

fs::path HangFolder::report_file(int rank) const { return path_ / fmt::format("rank_{:05}.txt", rank); }

bool HangFolder::write(const RankReport& report) const {
  std::error_code ignored;
  fs::create_directory(path_, ignored);
  return is_own_folder(path_) && write_file(report_file(report.rank), to_text(report));
}

void HangFolder::remove(int rank) const {
  std::error_code ignored;
  fs::remove(report_file(rank), ignored);
  fs::remove(path_, ignored);  // by the last
}

std::size_t HangFolder::number_of_reports() const {
  std::size_t number = 0;
  std::error_code error;
  for (fs::directory_iterator entry(path_, error), end; !error && entry != end; entry.increment(error)) {
    number += is_report(entry->path());
  }
  return number;
}

std::map<int, RankReport> HangFolder::reports() const {
  std::map<int, RankReport> found;
  std::error_code error;
  for (fs::directory_iterator entry(path_, error), end; !error && entry != end; entry.increment(error)) {
    if (!is_report(entry->path())) continue;
    if (auto report = read_report(entry->path(), Read::without_operations)) found[report->rank] = std::move(*report);
  }
  return found;
}

std::vector<ReportedOperation> HangFolder::operations_of(int rank) const {
  auto report = read_report(report_file(rank), Read::all);
  return report ? std::move(report->operations) : std::vector<ReportedOperation>();
}

bool HangFolder::claim_lead(int rank) const {
  const int descriptor = ::open((path_ / "leader").c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) return false;
  ::close(descriptor);
  renew_lead(rank, 0);
  return true;
}

void HangFolder::renew_lead(int rank, std::int64_t round) const {
  write_file(path_ / "leader", fmt::format("rank {}, round {}\n", rank, round));
}

void HangFolder::give_up_lead() const {
  std::error_code ignored;
  fs::remove(path_ / "leader", ignored);
}

std::string HangFolder::leader() const { return text_of(path_ / "leader"); }

void HangFolder::publish(const std::string& verdict) const { write_file(path_ / "verdict.txt", verdict); }

bool HangFolder::has_verdict() const {
  std::error_code ignored;
  return fs::exists(path_ / "verdict.txt", ignored);
}

}  // namespace nanotron::trainer
