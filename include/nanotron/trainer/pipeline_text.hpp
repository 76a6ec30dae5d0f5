#pragma once

#include <string>

#include "nanotron/deck/config.hpp"

namespace nanotron::trainer {

/// The pipeline of a resolved deck: its schedule, bubble and stages, a line each; empty for pp = 1. With pp_cut = 'time'
/// the stages are those of 'flops', which is said, until the run has measured.
std::string describe_pipeline(const deck::Config& config);

/// The same, and what each rank does when.
std::string draw_pipeline(const deck::Config& config);

}  // namespace nanotron::trainer
