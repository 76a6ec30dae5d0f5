#pragma once

// The grids and options of a deck on a number of ranks of a machine, the fastest first.
//
//   1  candidates: tp within a node, pp, cp, ep, micro-batch, ZeRO stage, recomputation, pipeline schedule (1f1b,
//      interleaved with its virtual stages, zero_bubble); those whose parameters, gradients and moments alone are
//      larger than the memory are left out, and those that the checks of the deck refuse
//   2  they are ranked by a formula: layers simulated once for each (tp, cp, ep, micro-batch, recomputation), times the
//      bubble, and the gradient reduction
//   3  in that order: the arena of the run is planned; of what fits, the fewest layers of each stage recompute that
//      memory allows, and few micro-batches are simulated, with experts also messages by node (ep_messages); the best
//      are simulated whole
//
// The search ends when `examined` candidates fit, or after `seconds`.

#include <string>
#include <vector>

#include "nanotron/deck/config.hpp"
#include "nanotron/deck/machine.hpp"
#include "nanotron/simulation/step_prediction.hpp"

namespace nanotron::simulation {

struct GridCandidate {
  std::vector<std::string> overrides;  // group.name=value
  deck::Config config;                 // resolved
  double memory = 0.0;                 // bytes of the largest rank
  StepPrediction prediction;
};

struct SearchLimits {
  int best = 10, examined = 60;
  double seconds = 60.0;
};

struct SearchResult {
  std::vector<GridCandidate> best;
  int candidates = 0, legal = 0, examined = 0;
};

/// text: of the deck, named `name` in messages. Error(deck_error) when nothing fits.
SearchResult search_grids(const std::string& text, const std::string& name, const std::vector<std::string>& overrides,
                          int ranks, const deck::Machine& machine, const SearchLimits& limits = {});

/// node-hours and energy: of the steps of the deck's run.
std::string describe(const SearchResult& result, const deck::Machine& machine);
/// One line for each of the best, with a header.
std::string as_csv(const SearchResult& result, const deck::Machine& machine);

}  // namespace nanotron::simulation
