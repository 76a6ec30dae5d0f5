#pragma once

#include <string>

namespace nanotron {

/// The name of this machine, as its hostname command says it; "unknown" where the system does not tell.
std::string host_name();

}  // namespace nanotron
