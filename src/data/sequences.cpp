#include "nanotron/data/sequences.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "nanotron/data/documents.hpp"
#include "nanotron/data/packed_documents.hpp"

namespace nanotron::data {
namespace {

class Stream final : public Sequences {
 public:
  Stream(const deck::DataConfig& data, const TokenFile& file, Split split)
      : file_(file), length_(data.sequence_length) {
    const index_t all = std::max<index_t>(file.size() - 1, 0) / length_;
    index_t held_out = 0;
    if (data.validation_path.empty() && data.validation_fraction > 0.0) {
      held_out = std::clamp<index_t>(std::llround(data.validation_fraction * static_cast<double>(all)), 1, all);
    }
    const bool is_rest = split == Split::training || !data.validation_path.empty();
    first_ = is_rest ? 0 : all - held_out;
    count_ = is_rest ? all - held_out : held_out;
    if (data.document_mask == deck::DocumentMask::block_diagonal) documents_.emplace(file);
  }

  index_t count() const override { return count_; }
  void read(index_t sequence, const Range& positions, std::int32_t* inputs, std::int32_t* targets) const override {
    if (positions.size() == 0) return;
    file_.read(token(sequence) + positions.begin, positions.size(), inputs);
    std::copy_n(inputs + 1, positions.size() - 1, targets);
    file_.read(token(sequence) + positions.end, 1, targets + positions.size() - 1);
  }
  void document_starts(index_t sequence, std::span<std::int32_t> out) const override {
    documents_->starts(token(sequence), out);
  }
  index_t targets(index_t) const override { return length_; }
  double filled() const override { return 1.0; }

 private:
  index_t token(index_t sequence) const { return (first_ + sequence) * length_; }

  const TokenFile& file_;
  index_t length_, first_ = 0, count_ = 0;
  std::optional<Documents> documents_;
};

}  // namespace

std::unique_ptr<Sequences> make_sequences(const deck::DataConfig& data, const TokenFile& file, Split split) {
  if (data.sequences == deck::SequenceKind::documents) return std::make_unique<PackedDocuments>(data, file, split);
  return std::make_unique<Stream>(data, file, split);
}

}  // namespace nanotron::data
