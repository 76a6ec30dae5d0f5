#pragma once

#include <string>

namespace nanotron {

/// NANOTRON_HOST_NAME where it is set (several containers, or tests of several hosts, on one machine), else the host
/// name of this machine (gethostname); "unknown" if that fails.
std::string host_name();

}  // namespace nanotron
