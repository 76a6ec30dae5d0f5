#include "nanotron/data/order/sequences.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "goldfish.hpp"
#include "nanotron/data/order/documents.hpp"
#include "nanotron/data/order/pairs.hpp"
#include "nanotron/data/order/sample_order.hpp"

namespace nanotron::data {
namespace {

// How many of the file's sequences are the validation split.
index_t held_out(const deck::DataConfig& data, index_t all) {
  if (!data.validation_path.empty() || data.validation_fraction == 0.0 || all == 0) return 0;
  return std::clamp<index_t>(std::llround(data.validation_fraction * static_cast<double>(all)), 1, all);
}

class Stream final : public Sequences {
 public:
  Stream(const deck::DataConfig& data, const TokenFile& file, Split split)
      : Stream(data, file, split, (file.size() - 1) / data.sequence_length) {}

  index_t count() const override { return is_rest_ ? parts_.training_count() : parts_.validation_count(); }
  void read(index_t sequence, const Range& positions, std::int32_t* inputs, std::int32_t* targets) const override {
    if (positions.size() == 0) return;
    file_.read_with_next(token(sequence) + positions.begin, positions.size(), inputs, targets);
    file_.loss_mask().apply(token(sequence) + positions.begin + 1,
                            {targets, static_cast<std::size_t>(positions.size())});
  }
  void document_starts(index_t sequence, std::span<std::int32_t> out) const override {
    documents_->starts(token(sequence), out);
  }
  index_t tokens(index_t) const override { return length_; }
  double filled() const override { return 1.0; }

 private:
  Stream(const deck::DataConfig& data, const TokenFile& file, Split split, index_t all)
      : file_(file),
        length_(data.sequence_length),
        is_rest_(split == Split::training || !data.validation_path.empty()),
        parts_(all, held_out(data, all)) {
    if (data.document_mask == deck::DocumentMask::block_diagonal) documents_.emplace(file);
  }

  index_t token(index_t sequence) const {
    return (is_rest_ ? parts_.training(sequence) : parts_.validation(sequence)) * length_;
  }

  const TokenFile& file_;
  index_t length_;
  bool is_rest_;
  HeldOut parts_;
  std::optional<Documents> documents_;
};

}  // namespace

std::unique_ptr<Sequences> make_sequences(const deck::DataConfig& data, const TokenFile& file, Split split) {
  std::unique_ptr<Sequences> sequences;
  if (data.sequences == deck::SequenceKind::documents) {
    sequences = std::make_unique<PackedDocuments>(data, file, split);
  } else if (data.sequences == deck::SequenceKind::pairs) {
    sequences = std::make_unique<PairSequences>(file, data.sequence_length);
  } else {
    sequences = std::make_unique<Stream>(data, file, split);
  }
  if (split == Split::validation || data.goldfish_k == 0) return sequences;
  return with_goldfish_loss(std::move(sequences), data);
}

}  // namespace nanotron::data
