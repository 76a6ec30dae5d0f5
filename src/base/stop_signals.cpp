#include "nanotron/base/stop_signals.hpp"

#include <csignal>
#include <initializer_list>

namespace nanotron {
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

}  // namespace

void hold_stop_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void release_stop_signals() {
  std::signal(SIGPIPE, SIG_DFL);
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

bool stop_signal_came() {
  const sigset_t set = stop_signals();
  const timespec at_once{};
  while (sigtimedwait(&set, nullptr, &at_once) > 0) came = true;
  return came;
}

}  // namespace nanotron
