// ranks: 1
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "nanotron/base/process.hpp"

namespace nanotron {
namespace {

// Exit code of a process that is sent the signal, which it has `before` it holds the signals: 1, it has come.
int after(int number, void (*before)(int)) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(number, before);
    hold_stop_signals();
    if (stop_signal_came()) _exit(2);
    raise(number);
    raise(number);
    const bool came = stop_signal_came();
    _exit(came != stop_signal_came() ? 3 : came ? 1 : 0);  // once it has come it stays so
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(StopSignals, WaitUntilTheyAreAskedFor) {
  for (const int number : {SIGUSR1, SIGTERM, SIGINT, SIGUSR2, SIGHUP, SIGQUIT, SIGXCPU}) {
    EXPECT_EQ(after(number, SIG_DFL), 1) << strsignal(number);
    EXPECT_EQ(after(number, SIG_IGN), 0) << strsignal(number) << ", as under nohup";
  }
}

}  // namespace
}  // namespace nanotron
