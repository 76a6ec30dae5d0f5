#pragma once

// Continues sequences token by token, keys and values of earlier tokens kept (a KV cache). Any
// width of the tensor-parallel group; every rank ends with the same tokens.

#include <optional>
#include <span>
#include <vector>

#include "nanotron/model/sampling.hpp"
#include "nanotron/model/transformer.hpp"

namespace nanotron::model {

struct GenerationSetup {
  deck::ModelConfig model;  // resolved
  index_t sequences = 1;    // continued at once, of equal length
  index_t capacity = 0;     // tokens of a sequence, given and new
  index_t chunk = 256;      // given tokens of a sequence that are taken in at once
  comm::Group* tp = &comm::alone();  // outlives the generator
};

struct GenerationRequest {
  std::vector<std::int32_t> prompt;  // at least one token
  index_t new_tokens = 0;            // at most
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

  /// Forgets all tokens.
  void reset() { length_ = 0; }
  /// Tokens of a sequence so far.
  index_t length() const { return length_; }

  /// Adds tokens (sequences x count) to the sequences and computes the logits behind the last of
  /// each: (sequences x vocabulary), valid until the next call. Error(deck_error) beyond the
  /// capacity. Collective.
  std::span<const double> extend(std::span<const std::int32_t> tokens);

  /// Sequence s is sample number s. The tokens behind the prompt, a list a sequence. Collective.
  std::vector<std::vector<std::int32_t>> generate(const GenerationRequest& request);

 private:
  void take_chunk(std::span<const std::int32_t> tokens, index_t begin, index_t count, index_t of);
  void collect_logits();

  GenerationSetup setup_;
  Device* device_;
  Transformer<T> transformer_;
  std::vector<nn::KeyValueCache<T>> caches_;  // by layer
  Vector<std::int32_t> inputs_;               // of a chunk of all sequences
  Vector<std::int32_t> positions_;
  Matrix<T> logits_;    // (sequences, local vocabulary)
  Matrix<T> part_;      // the same with as many columns as the widest rank has
  Vector<T> gathered_;  // part_ of each rank
  std::vector<std::int32_t> host_inputs_;
  typename Vector<T>::HostMirror host_gathered_;
  std::vector<double> host_logits_;
  index_t length_ = 0;
};

}  // namespace nanotron::model
