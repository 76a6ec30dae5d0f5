#include "nanotron/data/batch_loader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "data/order/length_buckets.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/data/order/training_stages.hpp"
#include "nanotron/deck/blend_stages.hpp"
#include "nanotron/deck/named_files.hpp"

namespace nanotron::data {
namespace {

void require_sequences(const deck::DataConfig& data, std::span<const TokenFile> files, Split split, index_t found,
                       index_t needed) {
  if (found >= needed) return;
  const bool training = split == Split::training, fraction = data.validation_path.empty();
  index_t tokens = 0;
  std::string paths;
  constexpr std::size_t told = 8;
  for (std::size_t i = 0; i < files.size(); ++i) {
    tokens += files[i].size();
    if (i < told) paths += (i == 0 ? "" : ", ") + files[i].path();
  }
  if (files.size() > told) paths += fmt::format(" and {} more", files.size() - told);
  fail(ExitCode::data_error,
       {training && needed > 1 ? "the training data are smaller than one global batch"
        : training             ? "a file of the training data has no sequence"
                               : "the validation data have no sequence",
        fmt::format("at least {} sequences of {} tokens ({}data%sequence_length)", needed, data.sequence_length,
                    training && needed > 1 ? "data%global_batch_size, " : ""),
        fmt::format("{} sequences ({} tokens in the file{})", found, tokens,
                    fraction ? fmt::format(", validation_fraction {}", data.validation_fraction) : ""),
        paths,
        training   ? "use more text, shorter sequences or a smaller batch"
        : fraction ? "use more text or shorter sequences, or raise data%validation_fraction"
                   : "use more text or shorter sequences, or another file in data%validation_path"});
}

// The weights of the files of one validation set, of so many sequences.
std::vector<double> validation_weights(const deck::DataConfig& data, const std::vector<index_t>& sequences) {
  std::vector<double> weights;
  if (data.validation_batches > 0 && sequences.size() > 1) {
    if (data.validation_path.empty()) {
      weights = deck::blend_stages(data).front().weights;
    } else {
      for (const deck::NamedFile& file : deck::named_files(data.validation_path)) weights.push_back(file.weight);
    }
  }
  const index_t all = std::accumulate(sequences.begin(), sequences.end(), index_t{0});
  const bool takes_all = all <= data.validation_batches * data.global_batch_size;
  if (weights.empty() || weights.front() < 0.0 || takes_all) weights.assign(sequences.begin(), sequences.end());
  return weights;
}

// Number of samples of one validation; 0 for training.
index_t samples_of(const deck::DataConfig& data, Split split, index_t sequences) {
  if (split == Split::training) return 0;
  return data.validation_batches == 0 ? sequences
                                      : std::min(sequences, data.validation_batches * data.global_batch_size);
}

}  // namespace

std::vector<BatchLoader::File> BatchLoader::open(const deck::DataConfig& data, std::uint64_t seed,
                                                 std::span<const TokenFile> files, Split split) {
  const bool training = split == Split::training;
  const std::vector<deck::NamedFile> named = deck::named_files(data.path);
  std::vector<File> opened;
  index_t found = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    std::unique_ptr<Sequences> sequences = make_sequences(data, files[i], split);
    const index_t count = sequences->count();
    found += count;
    if (files.size() > 1 || !training) require_sequences(data, files.subspan(i, 1), split, count, 1);
    if (count == 0) break;  // the one file of a training, too small
    const std::uint64_t own_seed = training ? seed_of_file(seed_of_cut(seed, data.cut), named.at(i).name) : seed;
    opened.push_back(
        {std::move(sequences), SampleOrder(own_seed, count, training ? data.shuffle : deck::Shuffle::none)});
  }
  if (training) require_sequences(data, files, split, found, data.global_batch_size);
  return opened;
}

std::vector<BatchLoader::File> BatchLoader::only(std::unique_ptr<Sequences> sequences) {
  std::vector<File> opened;
  const index_t count = sequences->count();
  opened.push_back({std::move(sequences), SampleOrder(0, count, deck::Shuffle::none)});
  return opened;
}

BatchLoader::BatchLoader(const deck::DataConfig& data, std::uint64_t seed, const TokenFile& file, Split split,
                         int dp_rank, int dp_size)
    : BatchLoader(data, seed, {&file, 1}, split, dp_rank, dp_size,
                  {{0, data.sequence_length}, {data.sequence_length, data.sequence_length}},
                  data.global_batch_size / dp_size) {}

BatchLoader::BatchLoader(const deck::DataConfig& data, std::unique_ptr<Sequences> sequences, int dp_rank, int dp_size,
                         const SequenceShard& tokens, index_t neighbours)
    : BatchLoader(data, only(std::move(sequences)), {{0, {1.0}}}, BatchRamp(data.global_batch_size), dp_rank, dp_size,
                  tokens, neighbours) {
  samples_ = number_of_sequences();
  samples_of_ = {samples_};
}

BatchLoader::BatchLoader(const deck::DataConfig& data, std::uint64_t seed, std::span<const TokenFile> files,
                         Split split, int dp_rank, int dp_size, const SequenceShard& tokens, index_t neighbours)
    : BatchLoader(data, open(data, seed, files, split),
                  split == Split::training ? blend_parts(data) : std::vector<BlendPart>{},
                  split == Split::training ? BatchRamp(data) : BatchRamp(data.global_batch_size), dp_rank, dp_size,
                  tokens, neighbours) {
  samples_ = samples_of(data, split, number_of_sequences());
  if (data.length_buckets) {
    grouped_.samples.resize(static_cast<std::size_t>(global_batch_size_));
    grouped_.classes.resize(grouped_.samples.size());
  }
  if (split == Split::training) {
    first_sample_ = data.cut.first_sample;
  } else {
    samples_of_ = blend_.counts_before(samples_);
  }
}

BatchLoader::BatchLoader(const deck::DataConfig& data, std::vector<File> files, const std::vector<BlendPart>& blend,
                         const BatchRamp& ramp, int dp_rank, int dp_size, const SequenceShard& tokens,
                         index_t neighbours)
    : files_(std::move(files)),
      blend_(blend.empty() ? std::vector<BlendPart>{{0, validation_weights(data, sequences_of(files_))}} : blend),
      ramp_(ramp),
      sequence_length_(data.sequence_length),
      global_batch_size_(data.global_batch_size),
      micro_batch_size_(data.micro_batch_size),
      dp_rank_(dp_rank),
      dp_size_(dp_size),
      neighbours_(neighbours),
      shard_(tokens),
      mask_(data.document_mask),
      has_documents_(mask_ != deck::DocumentMask::none || data.sequences == deck::SequenceKind::documents),
      tokens_(static_cast<std::size_t>(data.sequence_length + 1)),
      next_(static_cast<std::size_t>(data.sequence_length)),
      start_(static_cast<std::size_t>(data.sequence_length)) {
  if (global_batch_size_ % (dp_size * micro_batch_size_) != 0)
    fail(ExitCode::deck_error,
         {"the global batch cannot be divided over the grid",
          "data%global_batch_size a multiple of dp * micro_batch_size",
          fmt::format("global_batch_size {}, dp {}, micro_batch_size {}", global_batch_size_, dp_size,
                      micro_batch_size_),
          "the deck, group &data", "data%global_batch_size, data%micro_batch_size or parallel%dp"});
}

BatchLoader BatchLoader::each_once() const {
  BatchLoader all = *this;
  const std::vector<index_t> counts = sequences_of(files_);
  all.blend_ = Blend({{0, std::vector<double>(counts.begin(), counts.end())}});
  all.ramp_ = BatchRamp(global_batch_size_);
  all.samples_ = number_of_sequences();
  all.samples_of_ = all.blend_.counts_before(all.samples_);
  return all;
}

std::vector<index_t> BatchLoader::sequences_of(const std::vector<File>& files) {
  std::vector<index_t> sequences;
  for (const File& file : files) sequences.push_back(file.sequences->count());
  return sequences;
}

index_t BatchLoader::number_of_sequences() const {
  index_t sum = 0;
  for (const File& file : files_) sum += file.sequences->count();
  return sum;
}

std::vector<std::uint64_t> BatchLoader::contents() const {
  std::vector<std::uint64_t> contents;
  for (const File& file : files_) contents.push_back(file.sequences->content());
  return contents;
}

double BatchLoader::filled() const {
  double sum = 0.0;
  for (const File& file : files_) sum += file.sequences->filled() * static_cast<double>(file.sequences->count());
  return sum / static_cast<double>(number_of_sequences());
}

std::vector<BatchLoader::FileUse> BatchLoader::uses_before(index_t sample) const {
  const std::vector<index_t> counts = blend_.counts_before(sample - first_sample_);
  std::vector<FileUse> uses;
  for (std::size_t i = 0; i < files_.size(); ++i) uses.push_back({files_[i].sequences->count(), counts[i]});
  return uses;
}

BatchLoader::Source BatchLoader::source_of(index_t sample) const {
  if (samples_ == 0) {
    const Blend::Sample place = blend_.at(sample - first_sample_);
    const File& file = files_[place.file];
    return {file.sequences.get(), file.order.sequence_of(place.index), place.file};
  }
  const Blend::Sample place = blend_.at(sample % samples_);
  const Sequences* const own = files_[place.file].sequences.get();
  const index_t count = own->count(), samples = std::min(samples_of_[place.file], count);
  return {own, spread(place.index % samples, samples, count), place.file};
}

index_t BatchLoader::sequence_of(index_t sample) const {
  const Source source = source_of(sample);
  index_t before = 0;
  for (std::size_t i = 0; i < source.file; ++i) before += files_[i].sequences->count();
  return before + source.number;
}

index_t BatchLoader::sample_of(index_t first_sample, index_t j) const {
  const index_t place = numbers_of(first_sample).of(j);
  if (grouped_.samples.empty()) return place;
  if (grouped_.first != first_sample) group(first_sample);
  return first_sample + grouped_.samples[static_cast<std::size_t>(place - first_sample)];
}

// Long documents first; empty samples last.
void BatchLoader::group(index_t first_sample) const {
  const auto size = static_cast<std::size_t>(batch_size(first_sample));
  for (std::size_t i = 0; i < size; ++i) {
    const index_t sample = first_sample + static_cast<index_t>(i);
    int& level = grouped_.classes[i];
    level = length_classes;
    if (!counts(sample)) continue;
    const Source source = source_of(sample);
    level = length_class(source.sequences->longest_document(source.number), sequence_length_);
  }
  std::size_t place = 0;
  for (int level = 0; level <= length_classes; ++level) {
    for (std::size_t i = 0; i < size; ++i) {
      if (grouped_.classes[i] == level) grouped_.samples[place++] = static_cast<std::int32_t>(i);
    }
  }
  grouped_.first = first_sample;
}

std::uint64_t BatchLoader::load(index_t first_sample, index_t micro_batch, std::int32_t* inputs, std::int32_t* targets,
                                const Later& later) {
  NANOTRON_REQUIRE(first_sample >= 0 && micro_batch >= 0 && micro_batch < micro_batches(first_sample),
                   "sample {}, micro-batch {} of {}", first_sample, micro_batch, micro_batches(first_sample));
  const index_t tokens = shard_.length();
  std::fill_n(later.inputs, later.steps * micro_batch_size_ * tokens, no_token);
  std::fill_n(later.targets, later.steps * micro_batch_size_ * tokens, no_target);
  const bool hashes = shard_.first.begin == 0, has_later = later.steps > 0 && samples_ == 0;
  std::uint64_t hash = 0;
  for (index_t j = 0; j < micro_batch_size_; ++j) {
    const index_t sample = sample_of(first_sample, micro_batch * micro_batch_size_ + j);
    if (!counts(sample)) {
      std::fill_n(inputs + j * tokens, tokens, no_token);
      std::fill_n(targets + j * tokens, tokens, no_target);
      continue;
    }
    const Source source = source_of(sample);
    if (hashes || has_later) {
      source.sequences->read(source.number, {0, sequence_length_}, tokens_.data(), next_.data());
      tokens_.back() = next_.back();
    }
    if (hashes) hash += token_hash(sample, tokens_);
    for (const auto& [positions, token] : shard_.pieces()) {
      std::int32_t* const in = inputs + j * tokens + token;
      std::int32_t* const out = targets + j * tokens + token;
      if (hashes || has_later) {
        std::copy_n(tokens_.data() + positions.begin, positions.size(), in);
        std::copy_n(next_.data() + positions.begin, positions.size(), out);
      } else {
        source.sequences->read(source.number, positions, in, out);
      }
      const index_t filled = std::clamp(source.sequences->tokens(source.number), positions.begin, positions.end);
      std::fill_n(in + filled - positions.begin, positions.end - filled, no_token);
    }
    if (has_later) put_later(source, j, later);
  }
  return hash;
}

void BatchLoader::put_later(const Source& source, index_t j, const Later& later) {
  const auto [sequences, sequence, file] = source;
  if (has_documents_) sequences->document_starts(sequence, start_);
  const index_t tokens = shard_.length(), filled = sequences->tokens(sequence);
  const auto is_of_document = [&](index_t at, index_t p) {
    return !has_documents_ || start_[static_cast<std::size_t>(at)] == start_[static_cast<std::size_t>(p)];
  };
  for (const auto& [positions, token] : shard_.pieces()) {
    for (index_t p = positions.begin; p < positions.end; ++p) {
      for (index_t k = 1; k <= later.steps && p + k < filled && is_of_document(p + k, p); ++k) {
        const auto from = static_cast<std::size_t>(p + k);
        const index_t to = ((k - 1) * micro_batch_size_ + j) * tokens + token + p - positions.begin;
        later.inputs[to] = tokens_[from];
        if (p + k + 1 == sequence_length_ || is_of_document(p + k + 1, p)) later.targets[to] = next_[from];
      }
    }
  }
}

void BatchLoader::load_documents(index_t first_sample, std::span<std::int32_t> starts) const {
  if (mask_ == deck::DocumentMask::none) return;
  const auto length = static_cast<std::size_t>(sequence_length_);
  for (index_t j = 0; j < per_rank(first_sample); ++j) {
    const auto [sequences, sequence, file] = source_of(sample_of(first_sample, j));
    sequences->document_starts(sequence, starts.subspan(static_cast<std::size_t>(j) * length, length));
  }
}

index_t BatchLoader::tokens_of(index_t sample) const {
  if (!counts(sample)) return 0;
  const auto [sequences, sequence, file] = source_of(sample);
  return sequences->tokens(sequence);
}

void BatchLoader::load_tokens(index_t first_sample, std::span<std::int32_t> tokens) const {
  if (tokens.empty()) return;
  for (index_t j = 0; j < per_rank(first_sample); ++j)
    tokens[static_cast<std::size_t>(j)] = static_cast<std::int32_t>(tokens_of(sample_of(first_sample, j)));
}

index_t BatchLoader::tokens(index_t first_sample) const {
  index_t sum = 0;
  for (index_t i = 0; i < batch_size(first_sample); ++i) sum += tokens_of(first_sample + i);
  return sum;
}

}  // namespace nanotron::data
