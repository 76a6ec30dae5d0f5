#include "nanotron/data/batch_loader.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "nanotron/base/error.hpp"

namespace nanotron::data {
namespace {

std::unique_ptr<Sequences> checked_sequences(const deck::DataConfig& data, const TokenFile& file, Split split) {
  std::unique_ptr<Sequences> sequences = make_sequences(data, file, split);
  const bool training = split == Split::training, fraction = data.validation_path.empty();
  const index_t needed = training ? data.global_batch_size : 1;
  if (sequences->count() >= needed) return sequences;
  fail(ExitCode::data_error,
       {training ? "the training data are smaller than one global batch" : "the validation data have no sequence",
        fmt::format("at least {} sequences of {} tokens ({}data%sequence_length)", needed, data.sequence_length,
                    training ? "data%global_batch_size, " : ""),
        fmt::format("{} sequences ({} tokens in the file{})", sequences->count(), file.size(),
                    fraction ? fmt::format(", validation_fraction {}", data.validation_fraction) : ""),
        file.path(),
        training   ? "use more text, shorter sequences or a smaller batch"
        : fraction ? "use more text or shorter sequences, or raise data%validation_fraction"
                   : "use more text or shorter sequences, or another file in data%validation_path"});
}

// Number of samples of one validation; 0 for training.
index_t samples_of(const deck::DataConfig& data, Split split, index_t sequences) {
  if (split == Split::training) return 0;
  return data.validation_batches == 0 ? sequences
                                      : std::min(sequences, data.validation_batches * data.global_batch_size);
}

}  // namespace

BatchLoader::BatchLoader(const deck::DataConfig& data, std::uint64_t seed, const TokenFile& file,
                         Split split, int dp_rank, int dp_size)
    : BatchLoader(data, seed, file, split, dp_rank, dp_size,
                  {{0, data.sequence_length}, {data.sequence_length, data.sequence_length}},
                  data.global_batch_size / dp_size) {}

BatchLoader::BatchLoader(const deck::DataConfig& data, std::uint64_t seed, const TokenFile& file,
                         Split split, int dp_rank, int dp_size, const SequenceShard& tokens,
                         index_t neighbours)
    : sequences_(checked_sequences(data, file, split)),
      sequence_length_(data.sequence_length),
      global_batch_size_(data.global_batch_size),
      micro_batch_size_(data.micro_batch_size),
      dp_rank_(dp_rank),
      dp_size_(dp_size),
      neighbours_(neighbours),
      order_(seed, sequences_->count(),
             split == Split::training ? data.shuffle : deck::Shuffle::none),
      shard_(tokens),
      mask_(data.document_mask),
      tokens_(static_cast<std::size_t>(data.sequence_length + 1)),
      next_(static_cast<std::size_t>(data.sequence_length)) {
  if (global_batch_size_ % (dp_size * micro_batch_size_) != 0)
    fail(ExitCode::deck_error, {"the global batch does not divide over the grid",
                                "data%global_batch_size a multiple of dp * micro_batch_size",
                                fmt::format("global_batch_size {}, dp {}, micro_batch_size {}",
                                            global_batch_size_, dp_size, micro_batch_size_),
                                "the deck, group &data",
                                "data%global_batch_size, data%micro_batch_size or parallel%dp"});
  per_rank_ = global_batch_size_ / dp_size;
  samples_ = samples_of(data, split, sequences_->count());
}

BatchLoader::Source BatchLoader::source_of(index_t sample) const {
  if (samples_ == 0) return {sequences_.get(), order_.sequence_of(sample)};
  if (!counts(sample) && padding_ != nullptr) return {padding_, (sample - samples_) % padding_->count()};
  return {sequences_.get(), spread(sample % samples_, samples_, sequences_->count())};
}

std::uint64_t BatchLoader::load(index_t first_sample, index_t micro_batch, std::int32_t* inputs,
                                std::int32_t* targets) {
  NANOTRON_REQUIRE(first_sample >= 0 && micro_batch >= 0 && micro_batch < micro_batches(),
                   "sample {}, micro-batch {} of {}", first_sample, micro_batch, micro_batches());
  const bool hashes = shard_.first.begin == 0;
  const index_t tokens = shard_.length();
  std::uint64_t hash = 0;
  for (index_t j = 0; j < micro_batch_size_; ++j) {
    const index_t sample = first_sample + sample_of(micro_batch * micro_batch_size_ + j);
    const auto [sequences, sequence] = source_of(sample);
    if (hashes) {
      sequences->read(sequence, {0, sequence_length_}, tokens_.data(), next_.data());
      tokens_.back() = next_.back();
      hash += token_hash(sample, tokens_);
    }
    for (const auto& [positions, token] : shard_.pieces()) {
      std::int32_t* const in = inputs + j * tokens + token;
      std::int32_t* const out = targets + j * tokens + token;
      if (hashes) {
        std::copy_n(tokens_.data() + positions.begin, positions.size(), in);
        std::copy_n(next_.data() + positions.begin, positions.size(), out);
      } else {
        sequences->read(sequence, positions, in, out);
      }
      if (!counts(sample)) std::fill_n(out, positions.size(), no_target);
    }
  }
  return hash;
}

index_t BatchLoader::targets(index_t first_sample) const {
  index_t sum = 0;
  for (index_t sample = first_sample; sample < first_sample + global_batch_size_; ++sample) {
    if (counts(sample)) sum += sequences_->targets(source_of(sample).number);
  }
  return sum;
}

void BatchLoader::load_documents(index_t first_sample, std::span<std::int32_t> starts) const {
  if (mask_ == deck::DocumentMask::none) return;
  const auto length = static_cast<std::size_t>(sequence_length_);
  for (index_t j = 0; j < per_rank_; ++j) {
    const auto [sequences, sequence] = source_of(first_sample + sample_of(j));
    sequences->document_starts(sequence, starts.subspan(static_cast<std::size_t>(j) * length, length));
  }
}

}  // namespace nanotron::data
