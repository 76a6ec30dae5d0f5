#pragma once

#include <cstddef>

namespace nanotron {

/// Resident memory of this process in bytes, now and at its peak, as the kernel counts pages
/// (/proc/self/status VmRSS and VmHWM). 0 where there is no /proc.
std::size_t resident_bytes();
std::size_t peak_resident_bytes();

}  // namespace nanotron
