#pragma once

// Gradients that are partial sums on every rank of the tensor-parallel group: those of head norms, of KV heads stored
// on several ranks, of routers, and of norms of sequence-parallel hidden states.

#include "nanotron/model/layers/transformer.hpp"

namespace nanotron::model {

template <class T>
class PartialGradients {
 public:
  using M = master_t<T>;
  /// For one section. Takes its workspace from the arena (planning or real). model and device must outlive it.
  PartialGradients(const Transformer<T>& model, const Section& section, Device& device, Arena& arena);

  /// All-reduces the partial gradients that begin in this range of the flat space over the tensor-parallel group, in
  /// place. Call it once, after accumulation. Collective over the group.
  void sum(const Range& range) const;
  /// Bytes of one such all-reduce.
  comm::StepTraffic traffic(const Range& range) const;

 private:
  // A tensor of one layer; or replicated 2-D tensors of a unit that follow one another, which are summed at once.
  struct Piece {
    Range flat;
    index_t elements = 0;         // of the all-reduce
    index_t rows = 0, first = 0;  // of a logical tensor whose shards overlap, and where that of this rank begins; or 0
  };
  std::vector<Piece> pieces_of(const Section& section) const;
  void sum(const Piece& piece, M* local) const;

  const Transformer<T>* model_;
  Device* device_;
  std::vector<Piece> pieces_;  // in the order of the flat space
  Vector<M> whole_;            // buffer for the largest logical tensor with overlapping shards
};

}  // namespace nanotron::model
