#pragma once

// Calls of MPI that move the data of a group.

namespace nanotron::comm {

/// As NANOTRON_CHECK_MPI, but an error here may be that another rank made another call, or gave another size, and this
/// rank's message would name the wrong one. Where a watchdog is on it is printed as a warning, and the verdict is
/// waited for.
void check_transfer(int status, const char* call, const char* file, int line);

}  // namespace nanotron::comm

#define NANOTRON_CHECK_TRANSFER(call) ::nanotron::comm::check_transfer((call), #call, __FILE__, __LINE__)
