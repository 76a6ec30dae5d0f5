#pragma once

// Inputs and targets on the host for (global sample, dp rank, micro-batch).

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nanotron/base/types.hpp"
#include "nanotron/data/held_out.hpp"
#include "nanotron/data/sample_order.hpp"
#include "nanotron/data/sequences.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/tensor/sequence_layout.hpp"

namespace nanotron::data {

/// A step uses GBS = global_batch_size samples from the cursor on. dp rank r takes samples
/// [r GBS/dp, (r+1) GBS/dp) of them, micro_batch_size per micro-batch, in order. A context-parallel rank
/// takes its shard of each sequence. Not collective; the ranks of a tp group all read the same tokens.
/// Nothing is allocated after construction.
class BatchLoader {
 public:
  /// `file` must outlive the loader: the file at data.path, or for Split::validation with a validation_path one of the
  /// files there. `shuffle` applies to training only. Validation takes n samples of the split's V sequences: n = V for
  /// validation_batches = 0, else n = min(V, validation_batches * GBS); sample i < n is sequence spread(i, n, V)
  /// (data/held_out.hpp). Error(data_error) when training has less than one global batch or validation no sequence;
  /// Error(deck_error) when GBS is not a multiple of dp_size * micro_batch_size.
  BatchLoader(const deck::DataConfig& data, std::uint64_t seed, const TokenFile& file, Split split,
              int dp_rank, int dp_size);
  /// As above, for the part `tokens` of each sequence. dp ranks take `neighbours` samples each in turn (round-robin);
  /// neighbours divides GBS/dp.
  BatchLoader(const deck::DataConfig& data, std::uint64_t seed, const TokenFile& file, Split split,
              int dp_rank, int dp_size, const SequenceShard& tokens, index_t neighbours);

  /// For validation: fills the last global batch with sequences of the training data, which must outlive this loader,
  /// not with its own samples again. With few samples many ranks would otherwise compute the same sequence and send its
  /// tokens to the same experts.
  void pad_with(const BatchLoader& training) { padding_ = training.sequences_.get(); }

  index_t number_of_sequences() const { return sequences_->count(); }
  /// Fraction of positions that have a target.
  double filled() const { return sequences_->filled(); }
  /// Training: whole global batches per epoch. Validation: global batches with at least one of its samples.
  index_t number_of_batches() const {
    return samples_ == 0 ? sequences_->count() / global_batch_size_ : (samples_ - 1) / global_batch_size_ + 1;
  }
  /// Of this rank per step.
  index_t micro_batches() const { return per_rank_ / micro_batch_size_; }

  /// Overwrites inputs and targets, each (micro_batch_size, tokens of the shard) row-major, with micro-batch
  /// `micro_batch` (from 0) of the global batch that begins at global sample `first_sample`. Training samples past the
  /// end of the data are of the next epoch; validation samples past the last have inputs (pad_with) but no targets
  /// (no_target). Returns the sum of its samples' token hashes if the shard has position 0, else 0; the sum mod 2^64
  /// over micro-batches, dp and cp ranks is the hash of the step. Only ranks whose shard has position 0 read more than
  /// their tokens.
  std::uint64_t load(index_t first_sample, index_t micro_batch, std::int32_t* inputs,
                     std::int32_t* targets);

  /// Number of targets other than no_target in the global batch that begins at this sample, over all ranks.
  index_t targets(index_t first_sample) const;

  /// starts (sequences of this rank per step, sequence_length) <- the position at which the document of each position
  /// begins in its sequence. Does nothing without a document mask.
  void load_documents(index_t first_sample, std::span<std::int32_t> starts) const;

 private:
  // The global batch's index of this rank's sample j.
  index_t sample_of(index_t j) const {
    return (j / neighbours_ * dp_size_ + dp_rank_) * neighbours_ + j % neighbours_;
  }
  struct Source {
    const Sequences* sequences;
    index_t number;
  };
  Source source_of(index_t sample) const;
  bool counts(index_t sample) const { return samples_ == 0 || sample < samples_; }

  std::unique_ptr<Sequences> sequences_;
  const Sequences* padding_ = nullptr;
  index_t sequence_length_, global_batch_size_, micro_batch_size_;
  index_t dp_rank_, dp_size_, neighbours_;
  index_t per_rank_ = 0;  // samples per step
  index_t samples_ = 0;   // of validation; 0: training, without end
  SampleOrder order_;
  SequenceShard shard_;
  deck::DocumentMask mask_;
  std::vector<std::int32_t> tokens_, next_;  // inputs of a sequence, then its last target; targets
};

}  // namespace nanotron::data
