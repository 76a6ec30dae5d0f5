#pragma once

// How many of the S tokens of a sequence an expert takes: all (dropless, Gale et al. 2023), or only the first
// ceil(factor top_k S / experts) that choose it (Lepikhin et al. 2021). This depends neither on the micro-batch nor on
// how the sequence is sharded. A dropped assignment adds nothing; the weights of the token's other assignments do not
// change.

#include <memory>

#include "nanotron/kernels/moe/routing.hpp"
#include "nanotron/nn/attention/attention_core.hpp"
#include "nanotron/nn/attention/token_batch.hpp"

namespace nanotron::nn {

class ExpertCapacity {
 public:
  virtual ~ExpertCapacity() = default;

  /// Per forward.
  virtual comm::StepTraffic traffic() const = 0;

  /// rows and sources (tokens x top_k) as of kernels::mark_routed, with no_row for the assignments (tokens x top_k)
  /// that are dropped too. own: the assignments whose rows this rank sends. Collective over the context-parallel group.
  virtual void apply(Device& device, const TokenBatch& batch, Vector<const std::int64_t> assignments, const Range& own,
                     Vector<std::int64_t> rows, Vector<std::int64_t> sources) = 0;
};

/// Takes what it needs from the arena (planning or real). factor 0: all tokens are taken. cp must outlive it.
std::unique_ptr<ExpertCapacity> make_expert_capacity(double factor, const kernels::Routing& routing,
                                                     const ContextShard& context, index_t sequences, comm::Group& cp,
                                                     Device& device, Arena& arena);

}  // namespace nanotron::nn
