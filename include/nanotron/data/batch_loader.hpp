#pragma once

// Inputs and targets on the host for (global sample, dp rank, micro-batch).

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nanotron/base/types.hpp"
#include "nanotron/data/order/batch_ramp.hpp"
#include "nanotron/data/order/blend.hpp"
#include "nanotron/data/order/sample_order.hpp"
#include "nanotron/data/order/sequences.hpp"
#include "nanotron/deck/keys/data.hpp"
#include "nanotron/tensor/sequence_layout.hpp"

namespace nanotron::data {

/// A step uses GBS = global_batch_size samples from the cursor on; in training, as many as BatchRamp gives. dp rank r
/// takes samples [r GBS/dp, (r+1) GBS/dp) of them, micro_batch_size per micro-batch, in order; with data.length_buckets
/// in the order of their classes (src/data/order/length_buckets.hpp). A context-parallel rank takes its shard of each
/// sequence. Not collective; the ranks of a tp group all read the same tokens. Nothing is
/// allocated after construction.
class BatchLoader {
 public:
  /// `files` must outlive the loader. Training: the files of data.path, blended (data/order/blend.hpp), each in an
  /// order of its own (data/order/sample_order.hpp). Validation: one file, of data.path or validation_path; it takes n
  /// samples of the split's V sequences: n = V for validation_batches = 0, else n = min(V, validation_batches * GBS);
  /// sample i < n is sequence spread(i, n, V) (data/order/sample_order.hpp). Several files are one set, of V sequences
  /// in all: file k has n_k of the n samples, blended by the weights of the list, of the beginning of the run with
  /// validation_fraction; by V_k for n = V or without weights. With m_k = min(n_k, V_k) its j-th sample is spread(j mod
  /// m_k, m_k, V_k). Error(data_error) when training has less than one global batch or a file has no sequence;
  /// Error(deck_error) when GBS is not a multiple of dp_size * micro_batch_size. Loads the part `tokens` of each
  /// sequence. dp ranks take `neighbours` samples each in turn (round-robin); neighbours divides GBS/dp. Training
  /// samples are those of data.cut, from its first on.
  BatchLoader(const deck::DataConfig& data, std::uint64_t seed, std::span<const TokenFile> files, Split split,
              int dp_rank, int dp_size, const SequenceShard& tokens, index_t neighbours);
  /// Takes each of these sequences once, in their order, as in validation.
  BatchLoader(const deck::DataConfig& data, std::unique_ptr<Sequences> sequences, int dp_rank, int dp_size,
              const SequenceShard& tokens, index_t neighbours);
  /// As above, for one file and whole sequences.
  BatchLoader(const deck::DataConfig& data, std::uint64_t seed, const TokenFile& file, Split split, int dp_rank,
              int dp_size);

  /// Takes each sequence of these files once, in some order, as in validation.
  BatchLoader each_once() const;

  index_t number_of_sequences() const;  // of all files
  /// For each file Sequences::content.
  std::vector<std::uint64_t> contents() const;
  index_t sequence_length() const { return sequence_length_; }
  /// Fraction of positions that have a target.
  double filled() const;
  /// Training: whole global batches in all sequences. Validation: global batches with at least one of its samples.
  index_t number_of_batches() const {
    return samples_ == 0 ? number_of_sequences() / global_batch_size_ : (samples_ - 1) / global_batch_size_ + 1;
  }
  /// For each training file: its sequences, and how many of the samples before this one come from it.
  struct FileUse {
    index_t sequences, samples;
  };
  std::vector<FileUse> uses_before(index_t sample) const;
  /// Sequences of the global batch that begins at this sample.
  index_t batch_size(index_t first_sample) const { return ramp_.at(first_sample); }
  /// Micro-batches of this rank in that global batch; and in the largest one, of global_batch_size.
  index_t micro_batches(index_t first_sample) const { return per_rank(first_sample) / micro_batch_size_; }
  index_t max_micro_batches() const { return global_batch_size_ / dp_size_ / micro_batch_size_; }
  /// Samples of this rank in the global batch that begins at first_sample; their places in it, counted from
  /// first_sample; the global index of its sample j, which is its place unless the batch is grouped.
  index_t per_rank(index_t first_sample) const { return batch_size(first_sample) / dp_size_; }
  SampleNumbers numbers_of(index_t first_sample) const {
    return {.first = first_sample,
            .at_once = static_cast<std::int32_t>(std::min(neighbours_, per_rank(first_sample))),
            .shards = static_cast<std::int32_t>(dp_size_),
            .shard = static_cast<std::int32_t>(dp_rank_)};
  }
  index_t sample_of(index_t first_sample, index_t j) const;
  /// The sequence of a sample, counted through all files in their order.
  index_t sequence_of(index_t sample) const;

  /// inputs and targets, each (steps, micro_batch_size, tokens of the shard) <- for each position those of the
  /// positions 1, 2, ..., steps later in its sequence; no_token and no_target where that is past the end of the
  /// sequence, or of the document where there is a document mask or sequences are packed of documents. Validation has
  /// none.
  struct Later {
    index_t steps;  // 0: none
    std::int32_t *inputs, *targets;
  };
  /// Overwrites inputs and targets, each (micro_batch_size, tokens of the shard) row-major, with micro-batch
  /// `micro_batch` (from 0) of the global batch that begins at global sample `first_sample`; no_token and no_target
  /// where a position is empty (data/order/sequences.hpp), or the target is ignored. Training samples past the end of
  /// the data are of the next epoch; validation samples past the last are empty. Returns the sum of its samples' token
  /// hashes if the shard has position 0, else 0; the sum mod 2^64 over micro-batches, dp and cp ranks is the hash of
  /// the step. Only ranks whose shard has position 0, or that load later tokens, read more than their tokens.
  std::uint64_t load(index_t first_sample, index_t micro_batch, std::int32_t* inputs, std::int32_t* targets,
                     const Later& later = {});
  /// starts (sequences of this rank per step, sequence_length) <- the position at which the document of each position
  /// begins in its sequence. Does nothing without a document mask.
  void load_documents(index_t first_sample, std::span<std::int32_t> starts) const;
  /// tokens (sequences of this rank per step) <- tokens of each whole sequence. Does nothing if it is empty.
  void load_tokens(index_t first_sample, std::span<std::int32_t> tokens) const;
  /// Positions of the global batch that have a token.
  index_t tokens(index_t first_sample) const;

 private:
  struct Source {
    const Sequences* sequences;
    index_t number;
    std::size_t file;
  };
  Source source_of(index_t sample) const;
  bool counts(index_t sample) const { return samples_ == 0 || sample < samples_; }
  index_t tokens_of(index_t sample) const;
  void put_later(const Source& source, index_t j, const Later& later);  // of the sequence in tokens_
  void group(index_t first_sample) const;

  struct File {
    std::shared_ptr<const Sequences> sequences;
    SampleOrder order;
  };
  BatchLoader(const deck::DataConfig& data, std::vector<File> files, const std::vector<BlendPart>& blend,
              const BatchRamp& ramp, int dp_rank, int dp_size, const SequenceShard& tokens, index_t neighbours);
  static std::vector<File> open(const deck::DataConfig& data, std::uint64_t seed, std::span<const TokenFile> files,
                                Split split);
  static std::vector<File> only(std::unique_ptr<Sequences> sequences);
  static std::vector<index_t> sequences_of(const std::vector<File>& files);

  std::vector<File> files_;
  Blend blend_;
  std::vector<index_t> samples_of_;  // of validation, for each file
  BatchRamp ramp_;
  index_t sequence_length_, global_batch_size_, micro_batch_size_;
  index_t dp_rank_, dp_size_, neighbours_;
  index_t samples_ = 0;       // of validation; 0: training, without end
  index_t first_sample_ = 0;  // of the cut, of training (data/order/training_stages.hpp)
  SequenceShard shard_;
  deck::DocumentMask mask_;
  bool has_documents_;  // sequences know them
  struct Grouped {
    index_t first = -1;                 // sample of the global batch
    std::vector<std::int32_t> samples;  // from it on, place by place; empty: in the order of the data
    std::vector<int> classes;
  };
  mutable Grouped grouped_;
  std::vector<std::int32_t> tokens_, next_, start_;  // inputs of a sequence, then its last target; targets; documents
};

}  // namespace nanotron::data
