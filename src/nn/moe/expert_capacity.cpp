#include "nanotron/nn/moe/expert_capacity.hpp"

#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/moe/expert_rows.hpp"

namespace nanotron::nn {
namespace {

class Dropless final : public ExpertCapacity {
 public:
  comm::StepTraffic traffic() const override { return {}; }
  void apply(Device& device, const TokenBatch&, Vector<const std::int64_t> assignments, const Range& own,
             Vector<std::int64_t> rows, Vector<std::int64_t> sources) override {
    kernels::mark_routed(device, assignments, own, rows, sources);
  }
};

// All-gathers the assignments over the context-parallel group; each rank's are padded to those of the longest shard.
class PerSequence final : public ExpertCapacity {
 public:
  PerSequence(double factor, const kernels::Routing& routing, const ContextShard& context, index_t sequences,
              comm::Group& cp, Device& device, Arena& arena)
      : factor_(factor),
        routing_(routing),
        cp_(&cp),
        ranks_(context.layout.ranks()),
        rank_(context.rank),
        stride_(sequences * context.layout.longest_shard() * routing.top_k),
        all_(arena.take<std::int64_t>(MemoryKind::workspace, ranks_ * stride_)),
        base_(arena.take<std::int64_t>(MemoryKind::workspace, context.layout.length())),
        step_(arena.take<std::int64_t>(MemoryKind::workspace, context.layout.length())),
        own_(arena.take<std::int64_t>(MemoryKind::workspace, context.layout.length())) {
    if (!arena.is_planning()) fill_places(context, device);
  }

  comm::StepTraffic traffic() const override {
    return {.context_parallel = comm::all_gather_bytes(stride_ * static_cast<index_t>(sizeof(std::int64_t)), ranks_)};
  }

  void apply(Device& device, const TokenBatch& batch, Vector<const std::int64_t> assignments, const Range& own,
             Vector<std::int64_t> rows, Vector<std::int64_t> sources) override {
    kernels::mark_routed(device, assignments, own, rows, sources);
    std::int64_t* const mine = all_.data() + rank_ * stride_;
    kernels::copy<std::int64_t>(device, assignments, Vector<std::int64_t>(mine, assignments.extent(0)));
    if (ranks_ > 1) {
      comm::all_gather<std::int64_t>(*cp_, mine, static_cast<std::size_t>(stride_), all_.data(), device.stream());
    }
    kernels::mark_overflow(
        device, routing_,
        {.base = base_, .step = step_, .own = own_, .sequences = batch.sequences, .length = batch.length}, batch.filled,
        factor_, all_, rows);
  }

 private:
  void fill_places(const ContextShard& context, Device& device) {
    const auto base = Kokkos::create_mirror_view(base_), step = Kokkos::create_mirror_view(step_),
               own = Kokkos::create_mirror_view(own_);
    for (int r = 0; r < ranks_; ++r) {
      const SequenceShard& shard = context.layout[r];
      for (index_t i = 0; i < shard.length(); ++i) {
        const index_t p = shard.position_of(i);
        base(p) = r * stride_ + i * routing_.top_k;
        step(p) = shard.length() * routing_.top_k;
        own(p) = r == rank_ ? i : -1;
      }
    }
    Kokkos::deep_copy(base_, base);
    Kokkos::deep_copy(step_, step);
    Kokkos::deep_copy(own_, own);
    device.fence();
  }

  double factor_;
  kernels::Routing routing_;
  comm::Group* cp_;
  int ranks_, rank_;
  index_t stride_;  // assignments per rank, padded
  Vector<std::int64_t> all_, base_, step_, own_;
};

}  // namespace

std::unique_ptr<ExpertCapacity> make_expert_capacity(double factor, const kernels::Routing& routing,
                                                     const ContextShard& context, index_t sequences, comm::Group& cp,
                                                     Device& device, Arena& arena) {
  if (factor == 0.0) return std::make_unique<Dropless>();
  return std::make_unique<PerSequence>(factor, routing, context, sequences, cp, device, arena);
}

}  // namespace nanotron::nn
