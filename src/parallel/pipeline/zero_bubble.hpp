#pragma once

#include "nanotron/parallel/pipeline/pipeline_schedule.hpp"

namespace nanotron::parallel {

/// The action lists of all ranks for shape, whose placement is vee: two virtual stages per rank.
std::vector<std::vector<Action>> zero_bubble_actions(const PipelineSchedule& shape);

}  // namespace nanotron::parallel
