#pragma once

// Partitions a model's layers into pipeline stages: consecutive, none empty, the embedding in the first stage and the
// head in the last. It minimises the cost of the most expensive stage.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/model/cost.hpp"
#include "nanotron/model/layers/activations.hpp"
#include "nanotron/parallel/pipeline/pipeline_schedule.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::parallel {

/// Layers of each stage. costs are in any unit. 1 <= stages <= layers.
std::vector<Range> cut_layers(const model::BlockCosts& costs, index_t layers, int stages);

/// The layers of each stage of a resolved deck: parallel%pp_layers, or if it is empty the partition by pp_cut.
/// (pp_cut = 'time' has filled in pp_layers before, from measurements.)
std::vector<Range> stage_layers(const deck::Config& config);

/// The virtual stages of one pipeline rank, each with the number of slots it needs.
std::vector<model::VirtualStage> virtual_stages_of_rank(const std::vector<Range>& stage_layers,
                                                        const PipelineSchedule& schedule, int rank);

/// The schedule of a resolved deck. With pp = 1: forward, then backward, micro-batch by micro-batch.
PipelineSchedule schedule_of(const deck::Config& config);
/// The same for a step of this many sequences instead of global_batch_size.
PipelineSchedule schedule_of(const deck::Config& config, index_t batch_size);

/// parallel%pp_layers: numbers of at least 1, separated by blanks or a comma. Empty for any other text.
std::optional<std::vector<std::int64_t>> layer_counts(std::string_view text);

/// At least one layer per stage, pp_layers, and what a schedule requires.
void check_pipeline(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::parallel
