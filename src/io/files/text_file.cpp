#include "nanotron/io/files/text_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "io/files/durable_files.hpp"
#include "nanotron/base/files.hpp"

namespace nanotron::io {
namespace {

bool write_all(int descriptor, const std::string& text) {
  for (std::size_t written = 0; written < text.size();) {
    const ssize_t put = ::write(descriptor, text.data() + written, text.size() - written);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    written += static_cast<std::size_t>(put);
  }
  return true;
}

}  // namespace

int replace_text(const std::filesystem::path& path, const std::string& text) {
  const std::string beside = path.string() + ".tmp";
  ::unlink(beside.c_str());
  const int descriptor = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) return errno;
  int cause = write_all(descriptor, text) ? 0 : errno;
  if (::close(descriptor) != 0 && cause == 0) cause = errno;
  if (cause == 0 && std::rename(beside.c_str(), path.c_str()) != 0) cause = errno;
  if (cause != 0) ::unlink(beside.c_str());
  return cause;
}

void replace_text_durably(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path beside = path.string() + ".tmp";
  ::unlink(beside.c_str());
  write_durably(beside, text);
  rename_or_fail(beside, path);
  sync_to_disk(std::filesystem::absolute(path).parent_path());
}

int append_text(const std::filesystem::path& path, const std::string& text) {
  const int descriptor = files::open_plain(path, O_WRONLY | O_APPEND | O_CREAT);
  if (descriptor < 0) return errno;
  const int cause = write_all(descriptor, text) ? 0 : errno;
  return ::close(descriptor) != 0 && cause == 0 ? errno : cause;
}

}  // namespace nanotron::io
