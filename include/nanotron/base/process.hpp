#pragma once

// This process: its host, signals that ask it to stop, its standard streams, its memory.

#include <cstddef>
#include <string>

namespace nanotron {

/// NANOTRON_HOST_NAME where it is set (several containers, or tests of several hosts, on one machine), else the host
/// name of this machine (gethostname); "unknown" if that fails.
std::string host_name();

// Signals that ask a program to stop: SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGXCPU, as schedulers send before they
// kill, SIGHUP and SIGQUIT of a terminal; except those that were ignored when the program started (nohup, a shell's
// background job). They are blocked and polled, never handled: a handler runs on the stack of the code it interrupts,
// and oneDNN's fp32 GEMMs use heap memory as their stack.

// SIGURG asks for a checkpoint without a stop; it is blocked and polled like them. Until then, and in programs that do
// not poll it, it does nothing.

/// Blocks the signals, and ignores SIGPIPE: a closed console (`| head`) is not a reason to stop. Call it first in
/// main(): threads started earlier do not inherit the mask.
void hold_stop_signals();

/// From now on these signals and SIGPIPE end the program again.
void release_stop_signals();

/// Whether one of them has arrived since hold_stop_signals().
bool stop_signal_came();
/// Whether SIGURG has arrived since the last call.
bool save_signal_came();

/// Opens /dev/null for each of the descriptors 0, 1 and 2 that is closed (`>&-`). Otherwise a file of the run would get
/// the number, and printed text would be written into it. Call it before anything opens a file.
void open_standard_streams();

/// Resident memory of this process in bytes, now and at its peak, as the kernel counts pages
/// (/proc/self/status VmRSS and VmHWM). 0 where there is no /proc.
std::size_t resident_bytes();
std::size_t peak_resident_bytes();

}  // namespace nanotron
