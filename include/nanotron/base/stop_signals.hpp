#pragma once

// Signals that ask a program to stop: SIGTERM, SIGINT, SIGUSR1, SIGUSR2, as schedulers send before they
// kill. They are held back and asked for, never handled: a handler runs on the stack of the code it
// interrupts, and the fp32 products of oneDNN use memory of the heap as theirs.

namespace nanotron {

/// From here on the signals wait. Call it first in main(): threads started earlier would not know.
void hold_stop_signals();

/// They stop the program again.
void release_stop_signals();

/// Whether one of them has come since hold_stop_signals().
bool stop_signal_came();

}  // namespace nanotron
