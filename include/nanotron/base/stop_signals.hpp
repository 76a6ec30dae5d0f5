#pragma once

// Signals that ask a program to stop: SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGXCPU, as schedulers send before they
// kill, SIGHUP and SIGQUIT of a terminal; except those that were ignored when the program started (nohup, a shell's
// background job). They are blocked and polled, never handled: a handler runs on the stack of the code it interrupts,
// and oneDNN's fp32 GEMMs use heap memory as their stack.

namespace nanotron {

/// Blocks the signals, and ignores SIGPIPE: a closed console (`| head`) is not a reason to stop. Call it first in
/// main(): threads started earlier do not inherit the mask.
void hold_stop_signals();

/// They, and SIGPIPE, end the program again.
void release_stop_signals();

/// Whether one of them has arrived since hold_stop_signals().
bool stop_signal_came();

}  // namespace nanotron
