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

// Exit code of a process to which SIGURG is sent twice: 1, it asks for one checkpoint and not for a stop.
int after_urgent(void (*before)(int), bool holds) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGURG, before);
    if (holds) hold_stop_signals();
    if (holds && save_signal_came()) _exit(2);
    raise(SIGURG);
    raise(SIGURG);
    if (!holds) _exit(4);
    if (stop_signal_came()) _exit(3);
    const bool came = save_signal_came();
    _exit(save_signal_came() ? 5 : came ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(SaveSignal, AsksOnceAndStopsNothing) {
  EXPECT_EQ(after_urgent(SIG_DFL, true), 1);
  EXPECT_EQ(after_urgent(SIG_IGN, true), 0);
  EXPECT_EQ(after_urgent(SIG_DFL, false), 4) << "a program that does not hold it goes on";
}

}  // namespace
}  // namespace nanotron
