#include "nanotron/base/process.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <string>

namespace nanotron {

std::string host_name() {
  if (const char* given = std::getenv("NANOTRON_HOST_NAME"); given != nullptr && *given != 0) return given;
  std::array<char, 256> name{};  // one more than POSIX allows, which stays 0
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

namespace {

bool came = false;

bool is_ignored(int number) {
  struct sigaction action {};
  return sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// A blocked signal would come even where it was ignored.
sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP, SIGQUIT, SIGXCPU})
    if (!is_ignored(number)) sigaddset(&set, number);
  return set;
}

// Nobody else sends it, and where it is not known nothing happens: its default is to be ignored.
sigset_t save_signals() {
  sigset_t set;
  sigemptyset(&set);
  if (!is_ignored(SIGURG)) sigaddset(&set, SIGURG);
  return set;
}

bool arrived(const sigset_t& set) {
  const timespec at_once{};
  bool any = false;
  while (sigtimedwait(&set, nullptr, &at_once) > 0) any = true;
  return any;
}

}  // namespace

void hold_stop_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  const sigset_t save = save_signals();
  pthread_sigmask(SIG_BLOCK, &save, nullptr);
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void release_stop_signals() {
  std::signal(SIGPIPE, SIG_DFL);
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

bool stop_signal_came() {
  came = arrived(stop_signals()) || came;
  return came;
}

bool save_signal_came() { return arrived(save_signals()); }

void open_standard_streams() {
  for (int number = 0; number < 3; ++number) {
    if (::fcntl(number, F_GETFD) >= 0 || errno != EBADF) continue;
    if (::open("/dev/null", O_RDWR) != number) return;  // the lowest that is free
  }
}

namespace {

std::size_t status_kib(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != key) continue;
    std::size_t kib = 0;
    status >> kib;
    return kib;
  }
  return 0;
}

}  // namespace

std::size_t resident_bytes() { return status_kib("VmRSS:") * 1024; }
std::size_t peak_resident_bytes() { return status_kib("VmHWM:") * 1024; }

}  // namespace nanotron
