#pragma once

// How many tokens of a sequence an expert takes: all (dropless, Gale et al. 2023), or the first
// ceil(factor k S / E) that choose it (Lepikhin et al. 2021), whatever the micro-batch and the ranks that the sequence
// lies over. A token that an expert does not take passes it by, its other weights unchanged.

#include <memory>

#include "nanotron/kernels/moe/routing.hpp"
#include "nanotron/nn/attention/attention_core.hpp"
#include "nanotron/nn/attention/token_batch.hpp"

namespace nanotron::nn {

class ExpertCapacity {
 public:
  virtual ~ExpertCapacity() = default;

  /// Of one forward.
  virtual comm::StepTraffic traffic() const = 0;

  /// rows (tokens x top_k) <- -1 for the choices (tokens x top_k) that are dropped, 0 for others. Collective over the
  /// context-parallel group.
  virtual void apply(Device& device, const TokenBatch& batch, Vector<const std::int64_t> choices,
                     Vector<std::int64_t> rows) = 0;
};

/// Tokens of a sequence of `length` that an expert takes.
index_t expert_capacity(double factor, const kernels::Routing& routing, index_t length);

/// Takes what it needs from the arena (planning or real). factor 0: all tokens are taken. cp must outlive it.
std::unique_ptr<ExpertCapacity> make_expert_capacity(double factor, const kernels::Routing& routing,
                                                     const ContextShard& context, index_t sequences, comm::Group& cp,
                                                     Device& device, Arena& arena);

}  // namespace nanotron::nn
