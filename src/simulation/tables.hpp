#pragma once

// What the tables of grids and of sizes have in common, as text and as CSV. Private to the simulation.

#include <string>

#include "nanotron/deck/config.hpp"
#include "nanotron/simulation/step_prediction.hpp"

namespace nanotron::simulation {

/// What a grid waits for, in % of the step, the longest first: "pipeline 12, tp 5". Less than 1 % is left out.
std::string waits_text(const StepPrediction& prediction);
/// Per cent of the step by what it goes into, from one per cent on.
std::string parts_text(const StepPrediction& prediction);
/// "full"; "full 12/48" in some layers.
std::string recompute_text(const deck::Config& config);
/// "2"; "2 V" of zero bubble.
std::string virtual_text(const deck::ParallelConfig& parallel);

/// A line of CSV without its end, and the names of its columns: the grid, the speed, seconds of each share of the step.
std::string csv_of(const deck::Config& config, const StepPrediction& prediction, double memory, double peak);
std::string csv_names();

}  // namespace nanotron::simulation
