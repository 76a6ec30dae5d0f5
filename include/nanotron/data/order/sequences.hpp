#pragma once

// The sequences of a token file, of s = data%sequence_length positions each; a position has an input and a target, the
// next token, unless the file has a loss mask that ignores it. The last positions may be empty, see
// tensor/sequence_layout.hpp. By data%sequences:
//
//   'stream'      sequence k has inputs tokens[ks .. ks+s-1] and targets tokens[ks+1 .. ks+s]
//   'documents'   whole documents, packed with few unused positions; only documents longer than a sequence are split
//                 (data/order/documents.hpp)
//   'pairs'       two answers to one prompt (data/order/pairs.hpp)

#include <cstdint>
#include <memory>
#include <span>

#include "nanotron/data/tokens/token_file.hpp"
#include "nanotron/deck/keys/data.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::data {

/// Input of an empty position: the embedding has no row of it, and its hidden state is zero.
inline constexpr std::int32_t no_token = -1;

/// The training or the validation part of a file.
enum class Split {
  training,    // all but validation_fraction
  validation,  // validation_fraction (data/order/sample_order.hpp), or all of a file of validation_path
};

/// Sequences of one split. Not collective; nothing is allocated after construction.
class Sequences {
 public:
  virtual ~Sequences() = default;

  virtual index_t count() const = 0;
  /// inputs, targets (positions.size()) <- those of these positions of a sequence; no_target where there is none, or
  /// the file's loss mask says that it does not count. Inputs of empty positions <- 0, as the token hash has them.
  virtual void read(index_t sequence, const Range& positions, std::int32_t* inputs, std::int32_t* targets) const = 0;
  /// out (sequence_length) <- the position in the sequence at which each position's document begins. Only with a
  /// document mask.
  virtual void document_starts(index_t sequence, std::span<std::int32_t> out) const = 0;
  /// Positions of a sequence that have a token, from the first on; the others are empty.
  virtual index_t tokens(index_t sequence) const = 0;
  /// Fraction of the positions of all sequences that have a target, whether it counts or not.
  virtual double filled() const = 0;
  /// Positions of the longest document of a sequence of packed documents; else 0.
  virtual index_t longest_document(index_t) const { return 0; }
  /// Of sequences of pairs: what identifies the file, as TokenHashes::content; else 0.
  virtual std::uint64_t content() const { return 0; }
};

/// file must outlive the result: the file at data.path, or for Split::validation with a validation_path one of those.
std::unique_ptr<Sequences> make_sequences(const deck::DataConfig& data, const TokenFile& file, Split split);

}  // namespace nanotron::data
