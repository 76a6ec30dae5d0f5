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
    : BatchLoader(data, seed, file, split, dp_rank, dp_size,
                  {{0, data.sequence_length}, {data.sequence_length, data.sequence_length}},
                  data.global_batch_size / dp_size) {}

BatchLoader::BatchLoader(const deck::DataConfig& data, std::uint64_t seed, const TokenFile& file,
                         Split split, int dp_rank, int dp_size, const SequenceShard& tokens,
                         index_t neighbours)
    : file_(file),
      sequence_length_(data.sequence_length),
      global_batch_size_(data.global_batch_size),
      micro_batch_size_(data.micro_batch_size),
      dp_rank_(dp_rank),
      dp_size_(dp_size),
      neighbours_(neighbours),
      order_(seed, checked_sequences(data, file, split).count,
             split == Split::training ? data.shuffle : deck::Shuffle::none),
      shard_(tokens),
      tokens_(static_cast<std::size_t>(data.sequence_length + 1)) {
  if (global_batch_size_ % (dp_size * micro_batch_size_) != 0)
    fail(ExitCode::deck_error, {"the global batch does not divide over the grid",
                                "data%global_batch_size a multiple of dp * micro_batch_size",
                                fmt::format("global_batch_size {}, dp {}, micro_batch_size {}",
                                            global_batch_size_, dp_size, micro_batch_size_),
                                "the deck, group &data",
                                "data%global_batch_size, data%micro_batch_size or parallel%dp"});
  per_rank_ = global_batch_size_ / dp_size;
  first_sequence_ = sequences_of(data, file, split).first;
  if (data.document_mask == deck::DocumentMask::block_diagonal) documents_.emplace(file);
}

std::uint64_t BatchLoader::load(index_t first_sample, index_t micro_batch, std::int32_t* inputs,
                                std::int32_t* targets) {
  NANOTRON_REQUIRE(first_sample >= 0 && micro_batch >= 0 && micro_batch < micro_batches(),
                   "sample {}, micro-batch {} of {}", first_sample, micro_batch, micro_batches());
  const bool hashes = shard_.first.begin == 0;
  const index_t tokens = shard_.length();
  std::uint64_t hash = 0;
  for (index_t j = 0; j < micro_batch_size_; ++j) {
    const index_t of_rank = micro_batch * micro_batch_size_ + j;
    const index_t begin = token_of(first_sample, of_rank);
    if (hashes) {
      file_.read(begin, sequence_length_ + 1, tokens_.data());
      hash += token_hash(first_sample + sample_of(of_rank), tokens_);
    }
    for (const auto& [positions, token] : shard_.pieces()) {
      std::int32_t* const piece = tokens_.data() + positions.begin;
      if (!hashes && positions.size() > 0) file_.read(begin + positions.begin, positions.size() + 1, piece);
      std::copy_n(piece, positions.size(), inputs + j * tokens + token);
      std::copy_n(piece + 1, positions.size(), targets + j * tokens + token);
    }
  }
  return hash;
}

void BatchLoader::load_documents(index_t first_sample, std::span<std::int32_t> starts) const {
  if (!documents_) return;
  const auto length = static_cast<std::size_t>(sequence_length_);
  for (index_t j = 0; j < per_rank_; ++j) {
    documents_->starts(token_of(first_sample, j), starts.subspan(static_cast<std::size_t>(j) * length, length));
  }
}

}  // namespace nanotron::data
