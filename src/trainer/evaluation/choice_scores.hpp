#pragma once

// The log-likelihood of choices, over all ranks, and the accuracy of the best ones.

#include <span>
#include <vector>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/data/batch_loader.hpp"
#include "nanotron/data/choices/choice_sequences.hpp"
#include "nanotron/trainer/state/forward_backward.hpp"
#include "nanotron/trainer/state/token_stage.hpp"
#include "nanotron/trainer/state/training_state.hpp"

namespace nanotron::trainer {

/// Element c: the sum of ln p(token | context, tokens of the choice before it) over the tokens of choice c, in their
/// order; on rank 0 of the world, zeros elsewhere. loader: of `sequences`, for this rank. Collective over the world;
/// overwrites the tokens of the state.
template <class T>
std::vector<double> choice_scores(Device& device, comm::ProcessGrid& grid, const TrainingState<T>& state,
                                  ForwardBackwardSchedule<T>& schedule, TokenStage& tokens, data::BatchLoader& loader,
                                  const data::ChoiceSequences& sequences, const deck::Config& config);

/// By what a log-likelihood is divided before choices are compared.
enum class ChoiceLength { one, characters, bytes };

/// The choice of the question with the largest score / length, from 0; of equal ones the first.
index_t best_choice(const data::ChoiceFile& file, const data::Question& question, std::span<const double> scores,
                    ChoiceLength length);

struct Accuracy {
  double mean = 0.0;            // of the questions, the share whose best choice is the answer
  double standard_error = 0.0;  // sqrt(mean (1 - mean) / (questions - 1)); 0 for a single question
};
Accuracy accuracy(const data::ChoiceFile& file, std::span<const double> scores, ChoiceLength length);

}  // namespace nanotron::trainer
