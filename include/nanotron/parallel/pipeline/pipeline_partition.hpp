#pragma once

// The cut of a model's layers into pipeline stages: consecutive, none empty, the embedding with the first stage and
// the head with the last, the dearest stage as cheap as it can be.

#include <vector>

#include "nanotron/model/activations.hpp"
#include "nanotron/model/cost.hpp"
#include "nanotron/parallel/pipeline/pipeline_schedule.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::parallel {

/// Layers of each stage, in any unit of cost. 1 <= stages <= layers.
std::vector<Range> cut_layers(const model::BlockCosts& costs, index_t layers, int stages);

/// The layers of each stage that a resolved deck asks for: those of parallel%pp_layers, else the cut by pp_cut.
/// (What 'time' measures is put into pp_layers before.)
std::vector<Range> stage_layers(const deck::Config& config);

/// The virtual stages of one rank of the pipeline, each with the slots it needs.
std::vector<model::VirtualStage> virtual_stages_of_rank(const std::vector<Range>& stage_layers,
                                                        const PipelineSchedule& schedule, int rank);

/// The schedule of a resolved deck; without a pipeline, forward and backward of each micro-batch in turn.
PipelineSchedule schedule_of(const deck::Config& config);

}  // namespace nanotron::parallel
