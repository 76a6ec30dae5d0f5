#pragma once

#include "command_line.hpp"
#include "nanotron/base/error.hpp"

namespace nanotron::apps::plan {

// The search, or the comparison with published runs. On one rank.
ExitCode run(const Options& options);

}  // namespace nanotron::apps::plan
