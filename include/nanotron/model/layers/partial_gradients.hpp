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

  /// All-reduces the partial gradients of this range of the flat space over the tensor-parallel group, in place. Call
  /// it once, after accumulation. Collective over the group.
  void sum(const Range& range) const;
  /// Bytes of one such all-reduce.
  comm::StepTraffic traffic(const Range& range) const;

 private:
  template <class F>
  void for_each(const Range& range, const F& f) const;
  void sum(const nn::ParameterSpec& spec, M* local) const;

  const Transformer<T>* model_;
  comm::ReplicaSet replicas_;
  Device* device_;
  Vector<M> whole_;  // buffer for the largest logical tensor with overlapping shards
};

}  // namespace nanotron::model
