#pragma once

// The kinds of statistics of a step, each with a source of its own: columns, empty where the run has no such
// statistics; text for the log line, with the values of the columns; monitor. Private to the trainer.

#include "nanotron/trainer/state/step_result.hpp"
#include "nanotron/trainer/state/training_state.hpp"

namespace nanotron::trainer {

/// factor times the mean of rows, of which each term of the loss (a target token, a pair) has `rows_per_term`; there is
/// a term in `tokens_per_term` tokens. One value.
std::unique_ptr<StatisticsMonitor> make_auxiliary_mean(double factor, index_t rows_per_term, comm::ProcessGrid& grid,
                                                       Device& device, const AuxiliaryRows& of,
                                                       index_t tokens_per_term = 1);

std::span<const io::ExtraColumn> load_columns(const deck::Config& config);
std::string load_text(const deck::Config& config, std::span<const double> values);
template <class T>
std::unique_ptr<StatisticsMonitor> make_load_monitor(const deck::Config& config, comm::ProcessGrid& grid,
                                                     Device& device, const TrainingState<T>& state);

std::span<const io::ExtraColumn> z_loss_columns(const deck::Config& config);
std::string z_loss_text(const deck::Config& config, std::span<const double> values);
template <class T>
std::unique_ptr<StatisticsMonitor> make_z_loss_monitor(const deck::Config& config, comm::ProcessGrid& grid,
                                                       Device& device, const TrainingState<T>& state);

std::span<const io::ExtraColumn> later_tokens_columns(const deck::Config& config);
std::string later_tokens_text(const deck::Config& config, std::span<const double> values);
template <class T>
std::unique_ptr<StatisticsMonitor> make_later_tokens_monitor(const deck::Config& config, comm::ProcessGrid& grid,
                                                             Device& device, const TrainingState<T>& state);

/// Of the rewards of chosen and of rejected answers and of their comparison, a row for each pair; none without pairs.
std::vector<AuxiliaryRows> reward_rows(const deck::Config& config, Arena& arena);
std::span<const io::ExtraColumn> reward_columns(const deck::Config& config);
std::string reward_text(const deck::Config& config, std::span<const double> values);
template <class T>
std::unique_ptr<StatisticsMonitor> make_reward_monitor(const deck::Config& config, comm::ProcessGrid& grid,
                                                       Device& device, const TrainingState<T>& state);

std::span<const io::ExtraColumn> score_maxima_columns(const deck::Config& config);
std::string score_maxima_text(const deck::Config& config, std::span<const double> values);
template <class T>
std::unique_ptr<StatisticsMonitor> make_score_maxima_monitor(const deck::Config& config, comm::ProcessGrid& grid,
                                                             Device& device, const TrainingState<T>& state);

}  // namespace nanotron::trainer
