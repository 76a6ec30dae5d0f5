#pragma once

// Gradients of which every rank of a tensor-parallel group has a part: head norms, key-value heads that several ranks
// hold, routers, norms of sequence-parallel hidden states.

#include "nanotron/model/transformer.hpp"

namespace nanotron::model {

template <class T>
class PartialGradients {
 public:
  using M = master_t<T>;
  /// Of one section. Takes its workspace from the arena (planning or real). model and device must outlive it.
  PartialGradients(const Transformer<T>& model, const Section& section, Device& device, Arena& arena);

  /// Sums over the group what of this range of the flat space is partial, where backward leaves it. Once for what has been
  /// accumulated. Collective over the group.
  void sum(const Range& range) const;
  /// Bytes of one such sum.
  comm::StepTraffic traffic(const Range& range) const;

 private:
  template <class F>
  void for_each(const Range& range, const F& f) const;
  void sum(const nn::ParameterSpec& spec, M* local) const;

  const Transformer<T>* model_;
  comm::Holders holders_;
  Device* device_;
  Vector<M> whole_;  // the largest logical tensor that ranks hold parts of
};

}  // namespace nanotron::model
