#pragma once

#include <string>

#include "nanotron/deck/checks/findings.hpp"

namespace nanotron::trainer {

/// The pipeline of a resolved deck: a line with its schedule and bubble, and a line per stage; empty for pp = 1. With
/// pp_cut = 'time' the stages are those of 'flops' until the run has measured; the text notes it.
std::string describe_pipeline(const deck::Config& config);

/// The same, and a chart of what each rank does over time.
std::string draw_pipeline(const deck::Config& config);

}  // namespace nanotron::trainer
