#include "nanotron/data/batch_loader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "nanotron/base/error.hpp"

namespace nanotron::data {
namespace {

struct SequenceRange {
  index_t first, count;
};

SequenceRange sequences_of(const deck::DataConfig& data, const TokenFile& file, Split split) {
  const index_t all = std::max<index_t>(file.size() - 1, 0) / data.sequence_length;
  if (!data.validation_path.empty()) return {0, all};
  index_t held_out = 0;
  if (data.validation_fraction > 0.0)
    held_out = std::clamp<index_t>(std::llround(data.validation_fraction * double(all)), 1, all);
  if (split == Split::training) return {0, all - held_out};
  return {all - held_out, held_out};
}

SequenceRange checked_sequences(const deck::DataConfig& data, const TokenFile& file, Split split) {
  const SequenceRange range = sequences_of(data, file, split);
  if (range.count >= data.global_batch_size) return range;
  const char* name = split == Split::training ? "training" : "validation";
  fail(ExitCode::data_error,
       {fmt::format("the {} data are smaller than one global batch", name),
        fmt::format("at least {} sequences of {} tokens (data%global_batch_size, "
                    "data%sequence_length)",
                    data.global_batch_size, data.sequence_length),
        fmt::format("{} sequences ({} tokens in the file, validation_fraction {})", range.count,
                    file.size(), data.validation_fraction),
        file.path(),
        split == Split::training ? "use more text, shorter sequences or a smaller batch"
                                 : "raise data%validation_fraction or use a smaller batch"});
}

}  // namespace

BatchLoader::BatchLoader(const deck::DataConfig& data, std::uint64_t seed, const TokenFile& file,
                         Split split, int dp_rank, int dp_size)
    : file_(file),
      sequence_length_(data.sequence_length),
      global_batch_size_(data.global_batch_size),
      micro_batch_size_(data.micro_batch_size),
      order_(seed, checked_sequences(data, file, split).count,
             split == Split::training ? data.shuffle : deck::Shuffle::none),
      tokens_(static_cast<std::size_t>(data.sequence_length + 1)) {
  if (global_batch_size_ % (dp_size * micro_batch_size_) != 0)
    fail(ExitCode::deck_error, {"the global batch does not divide over the grid",
                                "data%global_batch_size a multiple of dp * micro_batch_size",
                                fmt::format("global_batch_size {}, dp {}, micro_batch_size {}",
                                            global_batch_size_, dp_size, micro_batch_size_),
                                "the deck, group &data",
                                "data%global_batch_size, data%micro_batch_size or parallel%dp"});
  per_rank_ = global_batch_size_ / dp_size;
  first_of_rank_ = dp_rank * per_rank_;
  first_sequence_ = sequences_of(data, file, split).first;
}

std::uint64_t BatchLoader::load(index_t first_sample, index_t micro_batch, std::int32_t* inputs,
                                std::int32_t* targets) {
  NANOTRON_REQUIRE(first_sample >= 0 && micro_batch >= 0 && micro_batch < micro_batches(),
                   "sample {}, micro-batch {} of {}", first_sample, micro_batch, micro_batches());
  const index_t first_here = first_sample + first_of_rank_ + micro_batch * micro_batch_size_;
  std::uint64_t hash = 0;
  for (index_t j = 0; j < micro_batch_size_; ++j) {
    const index_t sample = first_here + j;
    const index_t sequence = first_sequence_ + order_.sequence_of(sample);
    file_.read(sequence * sequence_length_, sequence_length_ + 1, tokens_.data());
    hash += token_hash(sample, tokens_);
    std::copy_n(tokens_.data(), sequence_length_, inputs + j * sequence_length_);
    std::copy_n(tokens_.data() + 1, sequence_length_, targets + j * sequence_length_);
  }
  return hash;
}

}  // namespace nanotron::data
