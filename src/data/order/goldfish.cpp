#include "goldfish.hpp"

#include <xxhash.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace nanotron::data {
namespace {

class Goldfish final : public Sequences {
 public:
  Goldfish(std::unique_ptr<Sequences> sequences, const deck::DataConfig& data)
      : sequences_(std::move(sequences)),
        k_(static_cast<std::uint64_t>(data.goldfish_k)),
        h_(data.goldfish_h),
        inputs_(static_cast<std::size_t>(data.sequence_length)),
        targets_(inputs_.size()) {}

  index_t count() const override { return sequences_->count(); }
  void read(index_t sequence, const Range& positions, std::int32_t* inputs, std::int32_t* targets) const override {
    const Range all{std::max<index_t>(positions.begin - h_ + 1, 0), positions.end};
    sequences_->read(sequence, all, inputs_.data(), targets_.data());
    for (index_t p = std::max(positions.begin, h_ - 1); p < positions.end; ++p) {
      const std::int32_t* const context = inputs_.data() + p - h_ + 1 - all.begin;
      const std::uint64_t hash = XXH3_64bits(context, static_cast<std::size_t>(h_) * sizeof *context);
      if (hash % k_ == 0) targets_[static_cast<std::size_t>(p - all.begin)] = no_target;
    }
    const index_t before = positions.begin - all.begin;
    std::copy_n(inputs_.data() + before, positions.size(), inputs);
    std::copy_n(targets_.data() + before, positions.size(), targets);
  }
  void document_starts(index_t sequence, std::span<std::int32_t> out) const override {
    sequences_->document_starts(sequence, out);
  }
  index_t tokens(index_t sequence) const override { return sequences_->tokens(sequence); }
  double filled() const override { return sequences_->filled(); }
  index_t longest_document(index_t sequence) const override { return sequences_->longest_document(sequence); }

 private:
  std::unique_ptr<Sequences> sequences_;
  std::uint64_t k_;
  index_t h_;
  mutable std::vector<std::int32_t> inputs_, targets_;  // of the positions that are read, and of their contexts
};

}  // namespace

std::unique_ptr<Sequences> with_goldfish_loss(std::unique_ptr<Sequences> sequences, const deck::DataConfig& data) {
  return std::make_unique<Goldfish>(std::move(sequences), data);
}

}  // namespace nanotron::data
