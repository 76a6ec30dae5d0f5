#pragma once

// Predictions beside published measurements. Two kinds of tables (CSV; lines that begin with '#' are comments):
//
// GPT runs of Megatron-LM, of SC21 (Narayanan et al. 2021, table 1) and K22 (Korthikanti et al. 2022, table 5), with
// the columns source, parameters_B, layers, hidden, heads, tp, pp, gpus, batch, tflops_per_gpu, seconds_full,
// seconds_selective:
//
//   SC21   full recomputation, tensor-parallel hidden states replicated; TFLOP/s as the paper counts them:
//          96 B s L h^2 (1 + s/(6h) + V/(16 L h)). micro-batch, virtual stages and DDP of the paper's own scripts; a
//          row that is not in its table 1 is an error.
//   K22    full: as SC21; selective: sequence parallel, attention computed again. micro-batch: batch where pp = 1, else
//          1; three virtual stages where L/pp is a multiple of 3.
//
// Runs of decks, with the columns source, run, software, ranks, measure, value, deck, set: measure is one of
// tokens_per_second_per_gpu, tflops_per_gpu (model FLOPs, masked pairs counted) and seconds; deck: a file; set:
// overrides, separated by blanks.

#include <string>
#include <vector>

#include "nanotron/deck/machine.hpp"

namespace nanotron::simulation {

struct RunComparison {
  std::string source, run, assumed;
  double measured = 0.0, predicted = 0.0;  // seconds of a step
  std::string parts;                       // percent of the predicted step by what it goes into
  double error() const { return predicted / measured - 1.0; }
};

/// path: of the table; paths in it are relative to its folder. Error(deck_error) names the line of what is wrong.
std::vector<RunComparison> compare_published(const std::string& path, const deck::Machine& machine);

double mean_absolute_error(const std::vector<RunComparison>& runs);
std::string describe(const std::vector<RunComparison>& runs);

}  // namespace nanotron::simulation
