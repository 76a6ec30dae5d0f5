#pragma once

// Generates tokens one by one with a KV cache, for any tensor-parallel degree. Every rank gets the same
// tokens.

#include <optional>
#include <span>
#include <vector>

#include "nanotron/model/generation/sampling.hpp"
#include "nanotron/model/layers/transformer.hpp"

namespace nanotron::model {

struct GenerationSetup {
  deck::ModelConfig model;           // resolved
  index_t sequences = 1;             // generated at once, of equal length
  index_t capacity = 0;              // max tokens of a sequence, prompt included
  index_t chunk = 256;               // max tokens per sequence of one forward (chunked prefill)
  comm::Group* tp = &comm::alone();  // outlives the generator
};

struct GenerationRequest {
  std::vector<std::int32_t> prompt;  // at least one token
  index_t new_tokens = 0;            // max
  Sampling sampling;
  std::optional<std::int32_t> eos{};  // ends a sequence and is not part of it
};

template <class T>
class Generator {
 public:
  using M = master_t<T>;

  /// Takes all its memory from the arena (planning or real). device must outlive it. The
  /// weights are set through transformer().
  Generator(const GenerationSetup& setup, Device& device, Arena& arena);

  Transformer<T>& transformer() { return transformer_; }

  /// Empties the KV cache.
  void reset() { length_ = 0; }
  /// Tokens of a sequence so far.
  index_t length() const { return length_; }

  /// Appends tokens (sequences x count) and returns the logits of the last token of each sequence:
  /// (sequences x v), valid until the next call. Error(deck_error) beyond the capacity.
  /// Collective.
  std::span<const double> extend(std::span<const std::int32_t> tokens);

  /// Returns the tokens after the prompt, one list per sequence; sequence s is sample s. Collective.
  std::vector<std::vector<std::int32_t>> generate(const GenerationRequest& request);

 private:
  void take_chunk(std::span<const std::int32_t> tokens, index_t begin, index_t count, index_t of);
  void collect_logits();

  GenerationSetup setup_;
  Device* device_;
  Transformer<T> transformer_;
  std::vector<nn::KeyValueCache<T>> caches_;  // by layer
  Vector<std::int32_t> inputs_;               // of all sequences, for one chunk
  Vector<std::int32_t> positions_;
  Matrix<T> logits_;    // (sequences, local vocabulary)
  Matrix<T> part_;      // logits_, padded to the widest shard
  Vector<T> gathered_;  // part_ of each rank
  std::vector<std::int32_t> host_inputs_;
  HostMirror<Vector<T>> host_gathered_;
  std::vector<double> host_logits_;
  index_t length_ = 0;
};

}  // namespace nanotron::model
