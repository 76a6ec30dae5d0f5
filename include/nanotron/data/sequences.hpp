#pragma once

// The sequences of a token file, each of data%sequence_length positions: an input and the token to predict.
//
//   stream      sequence k has inputs tokens[kS .. kS+S-1] and targets tokens[kS+1 .. kS+S]
//   documents   whole documents put together so that few positions are left over, none cut unless it is longer than a
//               sequence (data/packed_documents.hpp)

#include <cstdint>
#include <memory>
#include <span>

#include "nanotron/data/token_file.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::data {

/// Which part of a file belongs to training and which to validation.
enum class Split {
  training,    // all but validation_fraction
  validation,  // validation_fraction (data/held_out.hpp), or all of a file of validation_path
};

/// A target of no token: it counts in no loss.
inline constexpr std::int32_t no_target = -1;

/// Not collective; nothing is allocated after construction.
class Sequences {
 public:
  virtual ~Sequences() = default;

  /// Of the split.
  virtual index_t count() const = 0;
  /// inputs, targets (positions.size()) of these positions of a sequence, overwritten.
  virtual void read(index_t sequence, const Range& positions, std::int32_t* inputs, std::int32_t* targets) const = 0;
  /// out (sequence_length): where the document of each position begins, in the sequence. With a document mask only.
  virtual void document_starts(index_t sequence, std::span<std::int32_t> out) const = 0;
  /// How many targets count, and their share of the positions of all sequences.
  virtual index_t targets(index_t sequence) const = 0;
  virtual double filled() const = 0;
};

/// Borrows the file: that at data.path, or for Split::validation with a validation_path one of those there.
std::unique_ptr<Sequences> make_sequences(const deck::DataConfig& data, const TokenFile& file, Split split);

}  // namespace nanotron::data
