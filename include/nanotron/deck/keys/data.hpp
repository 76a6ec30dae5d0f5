#pragma once
// &data of the deck.

#include <cstdint>
#include <string>

namespace nanotron::deck {

enum class Shuffle { none, global };
enum class DocumentMask { none, block_diagonal };
enum class SequenceKind { stream, documents, pairs };
enum class Verify { automatic, full, sample, none };
enum class OtherTokenizer { refuse, accept };
enum class OnChange { refuse, warn };

/// First sample from which a stage cuts new sequences: set by data/order/training_stages.hpp, not a key of the
/// deck.
struct SequenceCut {
  std::int64_t number = 0;        // 0: of the beginning of the run
  std::int64_t first_sample = 0;  // of the run
  std::int64_t first_token = 0;   // of the run, sequence_length for each sample
};

struct DataConfig {
  // A line for each element of an array of the deck, see deck/table/lines.hpp.
  std::string path = "tokens.h5";  // one file or several, see deck/named_files.hpp
  std::string weights, stages;     // of several, see deck/blend_stages.hpp
  std::int64_t sequence_length = 512;
  std::int64_t global_batch_size = 8;  // after the ramp
  std::int64_t rampup_batch_size = 0;  // of the first steps; 0: no ramp (data/order/batch_ramp.hpp)
  std::int64_t rampup_increment = 0, rampup_samples = 0;
  std::int64_t micro_batch_size = 1;
  Shuffle shuffle = Shuffle::global;
  SequenceKind sequences = SequenceKind::stream;
  DocumentMask document_mask = DocumentMask::none;
  bool length_buckets = false;  // of documents
  Verify verify = Verify::automatic;
  OtherTokenizer other_tokenizer = OtherTokenizer::refuse;
  std::int64_t goldfish_k = 0, goldfish_h = 13;  // k = 0: every target counts
  OnChange on_change = OnChange::refuse;
  std::string validation_path;  // lines, see deck/named_files.hpp
  double validation_fraction = 0.0;
  std::int64_t validation_every = 0;
  std::int64_t validation_batches = 8;
  SequenceCut cut{};
};

}  // namespace nanotron::deck
