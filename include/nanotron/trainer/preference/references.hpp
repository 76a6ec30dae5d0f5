#pragma once

// The reference model of training on pairs: the weights that the run begins with. It is needed once, for the
// log-probabilities of all answers; a file keeps them (reference_file.hpp).

#include <array>
#include <filesystem>
#include <vector>

#include "nanotron/base/log.hpp"
#include "nanotron/data/batch_loader.hpp"
#include "nanotron/trainer/checkpoint/checkpointing.hpp"
#include "nanotron/trainer/state/forward_backward.hpp"
#include "nanotron/trainer/state/token_buffer.hpp"
#include "nanotron/trainer/state/training_state.hpp"

namespace nanotron::trainer {

/// preference%reference, or reference.txt in run%output_dir.
std::filesystem::path reference_path(const deck::Config& config);

template <class T>
class References {
 public:
  /// Nothing happens below where the run does not train on pairs. The references must outlive it; training: the loader
  /// of the run.
  References(const deck::Config& config, comm::ProcessGrid& grid, Device& device, TrainingState<T>& state,
             const data::BatchLoader& training, Log& log);

  /// Reads the file. Where there is none and the run begins here, computes and writes it, with the weights of the
  /// state: overwrites the tokens of the state. Error(data_error) for a file of other pairs or, in the run's folder, of
  /// other weights; and for none, if the weights of `start` are already trained on pairs. Collective over the world.
  void prepare(const StartingPoint& start, ForwardBackwardSchedule<T>& schedule, TokenBuffer& tokens);

  /// Queues the copy of the values of this global batch to the state.
  void load(index_t first_sample);

 private:
  bool read(const StartingPoint& start, bool begins);
  void compute(const StartingPoint& start, ForwardBackwardSchedule<T>& schedule, TokenBuffer& tokens);
  void add_batch(data::BatchLoader& all, index_t first_sample, std::vector<double>& log_probabilities);

  const deck::Config& config_;
  comm::ProcessGrid& grid_;
  Device& device_;
  TrainingState<T>& state_;
  const data::BatchLoader& training_;
  Log& log_;
  std::vector<double> log_probabilities_;  // (pairs, 2)
  std::array<PinnedArray<double>, 2> batches_;
  std::size_t next_ = 0;
};

}  // namespace nanotron::trainer
