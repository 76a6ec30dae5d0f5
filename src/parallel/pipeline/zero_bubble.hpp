#pragma once

#include "nanotron/parallel/pipeline/pipeline_schedule.hpp"

namespace nanotron::parallel {

/// The lists of all ranks for a pipeline of two virtual stages a rank in the shape of a V.
std::vector<std::vector<Action>> zero_bubble_actions(const PipelineSchedule& shape);

}  // namespace nanotron::parallel
