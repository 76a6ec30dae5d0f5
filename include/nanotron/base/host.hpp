#pragma once

#include <string>

namespace nanotron {

/// The host name of this machine (gethostname); "unknown" if that fails.
std::string host_name();

}  // namespace nanotron
