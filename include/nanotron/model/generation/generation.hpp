#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "nanotron/base/types.hpp"
#include "nanotron/model/layers/transformer.hpp"

namespace nanotron::model {

// Samples the next token from logits, on the host. Pure functions: ranks with the same logits draw the same
// token.

/// Temperature, then top-k, then top-p, each applied to what the one before keeps.
struct Sampling {
  double temperature = 1.0;  // logits are divided by it; 0: greedy, the likeliest token
  index_t top_k = 0;         // keep the k likeliest tokens; 0: all
  double top_p = 1.0;        // keep the smallest set of likeliest tokens with this total probability
  std::uint64_t seed = 0;    // (nucleus sampling: Holtzman et al. 2020)
};

struct Candidate {
  std::int32_t token;
  double probability;
};

/// Tokens that may be drawn, in the order of ids; their probabilities add up to 1. Of equal logits the
/// lower id counts as likelier. Error(numerics_error) when a logit is NaN or the largest is not finite.
std::vector<Candidate> candidates(std::span<const double> logits, const Sampling& sampling);

/// The random number depends only on sampling.seed, sample and the token's position in its sequence.
std::int32_t draw_token(std::span<const double> logits, const Sampling& sampling, std::uint32_t sample,
                        std::uint64_t position);

// Generates tokens one by one with a KV cache, for any tensor-parallel degree. Every rank gets the same
// tokens.

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
