#pragma once

// From (global sample, dp rank, micro-batch) to inputs and targets on the host.

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

/// A step uses the GBS samples behind a cursor; of these dp rank r takes the
/// block i in [r*GBS/dp, (r+1)*GBS/dp), and micro-batch m of it the next micro_batch_size. A rank of
/// a context-parallel group takes its shard of each sequence. Not collective; the ranks of one tp
/// group each read the same. Nothing is allocated after construction.
class BatchLoader {
 public:
  /// Borrows `file`, which must outlive the loader: the file at data.path, or for Split::validation
  /// with a validation_path one of the files there. `shuffle` is for training only. Validation takes n samples of the
  /// split's V sequences: n = V for validation_batches = 0, else at most validation_batches * GBS, and sample i < n
  /// is sequence spread(i, n, V) (data/held_out.hpp). Throws Error(data_error) when training has less than one global
  /// batch or validation nothing, Error(deck_error) when the batch does not divide over dp_size and micro_batch_size.
  BatchLoader(const deck::DataConfig& data, std::uint64_t seed, const TokenFile& file, Split split,
              int dp_rank, int dp_size);
  /// As above, of a part of each sequence; the samples are dealt out in turn, `neighbours` at a time, a divisor of
  /// GBS/dp.
  BatchLoader(const deck::DataConfig& data, std::uint64_t seed, const TokenFile& file, Split split,
              int dp_rank, int dp_size, const SequenceShard& tokens, index_t neighbours);

  /// Of a validation: what lies past its last sample has the sequences of this training data, which is borrowed, rather
  /// than the first samples' again. Of few samples that would be the same one on many ranks at once, and as many tokens
  /// for the same experts.
  void pad_with(const BatchLoader& training) { padding_ = training.sequences_.get(); }

  index_t number_of_sequences() const { return sequences_->count(); }
  /// Share of all positions that have a target.
  double filled() const { return sequences_->filled(); }
  /// Training: whole global batches of one epoch. Validation: all that hold one of its samples.
  index_t number_of_batches() const {
    return samples_ == 0 ? sequences_->count() / global_batch_size_ : (samples_ - 1) / global_batch_size_ + 1;
  }
  /// Micro-batches of this rank in each step.
  index_t micro_batches() const { return per_rank_ / micro_batch_size_; }

  /// Fills inputs and targets, each (micro_batch_size, tokens of the shard) row-major, with micro-batch
  /// `micro_batch` (from 0) of the global batch that begins at global sample `first_sample`; samples
  /// past the end of the data go on into the next epoch; those of a validation have inputs (pad_with) and no targets
  /// (no_target). Returns the sum of the token hashes of its samples
  /// where the shard has position 0, else 0: summed mod 2^64 over micro-batches, dp and cp ranks that is
  /// the hash of the step. Only that shard's rank reads more than its tokens.
  std::uint64_t load(index_t first_sample, index_t micro_batch, std::int32_t* inputs,
                     std::int32_t* targets);

  /// How many targets of the global batch that begins at this sample count, on all ranks together.
  index_t targets(index_t first_sample) const;

  /// Without a document mask nothing; else starts (sequences of this rank in a step, sequence_length): where the
  /// document of each position begins, in its sequence.
  void load_documents(index_t first_sample, std::span<std::int32_t> starts) const;

 private:
  // This rank's sample j among those of the step, and its sequence.
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
  index_t per_rank_ = 0;                      // samples of one step
  index_t samples_ = 0;                       // of a validation; 0: training, which goes on for ever
  SampleOrder order_;
  SequenceShard shard_;
  deck::DocumentMask mask_;
  std::vector<std::int32_t> tokens_, next_;  // inputs of a sequence with the last target behind them; targets
};

}  // namespace nanotron::data
