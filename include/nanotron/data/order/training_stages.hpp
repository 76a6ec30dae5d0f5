#pragma once

// The stages of a run that data%stages gives other sequence lengths, batch sizes or keys of the deck.
//
// Stage k takes steps of B_k sequences of s_k tokens. With b_k its first sample of the run, t_k = t_{k-1} + (b_k -
// b_{k-1}) s_{k-1} its first token and n_k the token that data%stages names,
//
//     b_k = b_{k-1} + B_{k-1} ceil((n_k - t_{k-1}) / (B_{k-1} s_{k-1}))      b_0 = t_0 = 0,
//
// it begins with the first step that begins at token n_k or later. (Before the first the batch may grow,
// data/order/batch_ramp.hpp.) So a stage, like all that it sets, is a function of the sample cursor, and with it which
// tokens a sample has: of (seed, sample), independent of the grid and of interruptions.
//
// What repeats. Consecutive stages of one sequence length are one cut: their samples continue in one order. A stage of
// another length begins a new cut. Sample g of it is sample g - b of files that are cut again into sequences of that
// length, b being its first sample, in an order keyed by (seed ^ XXH3-64("cut <number>"), epoch), the first cut being
// number 0 with the seed itself. Within a cut no sequence comes twice in an epoch. A new cut knows nothing of the ones
// before: it begins a new epoch of each file, in which every token is repeated, also those that the run has seen. A
// file with weight 0 before it is not repeated. With shuffle = 'none' a cut begins at the beginning of its files.

#include <cstdint>
#include <string>
#include <vector>

#include "nanotron/base/types.hpp"
#include "nanotron/deck/blend_stages.hpp"
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config.hpp"

namespace nanotron::data {

struct TrainingStage {
  std::int64_t from_token = 0;               // as data%stages says
  index_t first_sample = 0, first_step = 0;  // of a run that had this deck from the beginning
  std::int64_t first_token = 0;
  deck::SequenceCut cut{};
  std::vector<deck::StageSetting> settings{};  // of this stage and those before, in this order
};

/// At least one. Stages that only change weights (data/order/blend.hpp) do not count. Stops at the first mistake of the
/// deck.
std::vector<TrainingStage> training_stages(const deck::Config& run);

/// The run's configuration with the settings of a stage, checked or resolved if the run's is; for the first stage, that
/// of the run.
deck::Config stage_config(const deck::Config& run, const TrainingStage& stage);

/// The stage whose step begins at this sample.
std::size_t stage_at(const std::vector<TrainingStage>& stages, index_t sample);

/// "the stage from token 3e+09 on"; "the first stage".
std::string name_of(const TrainingStage& stage);

/// Reports what does not work with stages of another length or batch: a ramp that ends in a later stage, tokens that
/// validation_fraction would hold out in one stage and train on in another.
void check_stages(const deck::Config& config, deck::Findings& findings);

/// The seed of the order of a cut.
std::uint64_t seed_of_cut(std::uint64_t seed, const deck::SequenceCut& cut);

}  // namespace nanotron::data
