#include "choice_scores.hpp"

#include <cmath>

#include "nanotron/base/error.hpp"

namespace nanotron::trainer {
namespace {

using Piece = data::ChoiceSequences::Piece;

// The index in this shard's tokens of a position of the sequence; -1 if another rank has it.
index_t token_at(const SequenceShard& shard, index_t position) {
  for (const auto& [positions, token] : shard.pieces()) {
    if (positions.contains(position)) return token + position - positions.begin;
  }
  return -1;
}

// The targets of a global batch, sequence by sequence: where those of each sequence begin, and how many there are.
struct BatchTargets {
  index_t first_sample;
  std::vector<std::size_t> begins{0};

  BatchTargets(const data::ChoiceSequences& sequences, index_t first, index_t batch) : first_sample(first) {
    for (index_t s = first; s < std::min(first + batch, sequences.count()); ++s) {
      begins.push_back(begins.back() + static_cast<std::size_t>(sequences.targets(s)));
    }
  }
  index_t sequences() const { return static_cast<index_t>(begins.size()) - 1; }
};

// Calls use(piece, position, index among the batch's targets) for each target of a sequence.
template <class Use>
void for_each_target(const data::ChoiceSequences& sequences, const BatchTargets& batch, index_t sample,
                     const Use& use) {
  std::size_t at = batch.begins[static_cast<std::size_t>(sample)];
  for (const Piece& piece : sequences.pieces(batch.first_sample + sample)) {
    for (index_t p = piece.first_target(); p < piece.position + piece.length; ++p) use(piece, p, at++);
  }
}

}  // namespace

template <class T>
std::vector<double> choice_scores(Device& device, comm::ProcessGrid& grid, const TrainingState<T>& state,
                                  ForwardBackwardSchedule<T>& schedule, TokenStage& tokens, data::BatchLoader& loader,
                                  const data::ChoiceSequences& sequences, const deck::Config& config) {
  const SequenceLayout layout = sequence_layout(config);
  const SequenceShard& shard = layout[grid.cp_rank()];
  const auto rows = Kokkos::create_mirror(state.loss_rows);
  std::vector<double> scores;
  for (index_t b = 0; b < loader.number_of_batches(); ++b) {
    const BatchTargets batch(sequences, b * config.data.global_batch_size, config.data.global_batch_size);
    tokens.load(device, loader, batch.first_sample);
    schedule.forward();
    Kokkos::deep_copy(device.exec(), rows, state.loss_rows);
    device.fence();
    // One rank has the loss of a token, and all others add zero: the sum is exact.
    std::vector<double> losses(batch.begins.back(), 0.0);
    for (index_t j = 0; j < loader.per_rank(batch.first_sample) && grid.tp_rank() == 0; ++j) {
      const index_t in_batch = loader.sample_of(batch.first_sample, j) - batch.first_sample;
      if (in_batch >= batch.sequences()) continue;
      for_each_target(sequences, batch, in_batch, [&](const Piece&, index_t position, std::size_t at) {
        const index_t token = token_at(shard, position);
        if (token >= 0) losses[at] = rows(static_cast<std::size_t>(j * shard.length() + token));
      });
    }
    const bool collects = grid.world().rank() == 0;
    NANOTRON_CHECK_MPI(MPI_Reduce(collects ? MPI_IN_PLACE : losses.data(), losses.data(),
                                  static_cast<int>(losses.size()), MPI_DOUBLE, MPI_SUM, 0, grid.world().mpi()));
    for (index_t s = 0; s < batch.sequences(); ++s) {
      for_each_target(sequences, batch, s, [&](const Piece& piece, index_t, std::size_t at) {
        const auto choice = static_cast<std::size_t>(piece.choice);
        if (choice >= scores.size()) scores.resize(choice + 1, 0.0);
        if (collects) scores[choice] -= losses[at];
      });
    }
  }
  return scores;
}

index_t best_choice(const data::ChoiceFile& file, const data::Question& question, std::span<const double> scores,
                    ChoiceLength length) {
  const auto value = [&](index_t choice) {
    const auto c = static_cast<std::size_t>(choice);
    const index_t divisor = length == ChoiceLength::one          ? 1
                            : length == ChoiceLength::characters ? file.choices()[c].characters
                                                                 : file.choices()[c].bytes;
    return scores[c] / static_cast<double>(divisor);
  };
  index_t best = question.choices.begin;
  for (index_t c = best + 1; c < question.choices.end; ++c) {
    if (value(c) > value(best)) best = c;
  }
  return best - question.choices.begin;
}

Accuracy accuracy(const data::ChoiceFile& file, std::span<const double> scores, ChoiceLength length) {
  index_t right = 0;
  for (const data::Question& q : file.questions()) {
    if (best_choice(file, q, scores, length) == q.answer) ++right;
  }
  const auto n = static_cast<double>(file.questions().size());
  const double mean = static_cast<double>(right) / n;
  return {mean, n > 1.0 ? std::sqrt(mean * (1.0 - mean) / (n - 1.0)) : 0.0};
}

#define NANOTRON_INSTANTIATE(T)                                                                               \
  template std::vector<double> choice_scores<T>(Device&, comm::ProcessGrid&, const TrainingState<T>&,         \
                                                ForwardBackwardSchedule<T>&, TokenStage&, data::BatchLoader&, \
                                                const data::ChoiceSequences&, const deck::Config&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::trainer
