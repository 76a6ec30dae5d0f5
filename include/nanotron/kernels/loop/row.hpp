#pragma once

// The loops within one row of a kernel.

#include "nanotron/kernels/loop/host_row.hpp"
#include "nanotron/kernels/loop/team_row.hpp"

namespace nanotron::kernels {

using Row = std::conditional_t<on_host, HostRow, TeamRow>;

}  // namespace nanotron::kernels
