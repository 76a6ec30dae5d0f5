#include "nanotron/optim/update_decision.hpp"

#include <algorithm>

#include "nanotron/base/types.hpp"
#include "nanotron/comm/collectives.hpp"

namespace nanotron::optim {
namespace {

using kernels::ExactSum, kernels::UpdateScalars;

constexpr index_t loss_at = 0, norm_at = 1, parts_at = 2;

index_t sums_of(const DecisionSetup& setup) {
  std::size_t sums = parts_at + setup.norm.size();
  for (const NormPart& part : setup.norm) sums += part.owned.size();
  return static_cast<index_t>(sums);
}

template <class S>
void queue_copy(Device& device, const Vector<S>& from, const PinnedArray<S>& to) {
  using OnHost = Kokkos::View<S*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  Kokkos::deep_copy(device.exec(), OnHost(to.span().data(), to.span().size()), from);
}

}  // namespace

std::vector<Range> owned_gradient_ranges(const model::ParameterTable& table, const nn::ParameterLayouts& layouts,
                                         const model::Sharding& sharding, const Range& flat) {
  const nn::BufferLayout mine = layouts.reduced.common(model::owned_layout(table, sharding));
  std::vector<Range> ranges;
  for (const Range& owned : model::owned_ranges(table)) {
    const Range part{std::max(owned.begin, flat.begin), std::min(owned.end, flat.end)};
    if (part.size() <= 0) continue;
    for (const nn::BufferLayout::Part& p : mine.within(part)) ranges.push_back({p.at, p.at + p.range.size()});
  }
  return ranges;
}

template <class M>
UpdateDecision<M>::UpdateDecision(DecisionSetup setup, Arena& arena)
    : setup_(std::move(setup)),
      top_place_(arena.take<std::int64_t>(MemoryKind::workspace, 1)),
      compared_(arena.take<std::int64_t>(MemoryKind::workspace, setup_.all.empty() ? 0 : kernels::compared_values)),
      scalars_(arena.take<UpdateScalars>(MemoryKind::workspace, 1)),
      sums_(arena.take<ExactSum>(MemoryKind::workspace, sums_of(setup_))),
      host_(arena.is_planning() ? nullptr : std::make_unique<OnHost>()) {}

void sum_over(Device& device, const std::vector<comm::Group*>& groups, Vector<ExactSum> sum,
              Vector<std::int64_t> top_place) {
  for (comm::Group* group : groups) {
    if (group->size() == 1) continue;
    kernels::top_place(device, sum, top_place);
    comm::all_reduce(*group, top_place.data(), 1, comm::ReduceOp::max, device.stream());
    kernels::at_place(device, top_place, sum);
    comm::all_reduce(*group, sum.data()->digits, ExactSum::places, comm::ReduceOp::sum, device.stream());
  }
}

template <class M>
void UpdateDecision<M>::sum_losses(Device& device, Vector<const double> losses) {
  kernels::sum(device, losses, sum_at(loss_at));
  sum_over(device, setup_.loss, sum_at(loss_at), top_place_);
}

template <class M>
void UpdateDecision<M>::sum_squares(Device& device, Vector<const M> gradient) {
  const Region region(device.timers(), "gradient norm");
  const auto parts = static_cast<index_t>(setup_.norm.size());
  index_t part_at = parts_at, range_at = parts_at + parts;
  for (const auto& [owned, groups] : setup_.norm) {
    const index_t first = range_at;
    for (const Range& r : owned) {
      kernels::sum_of_squares<M>(device, Vector<const M>(gradient.data() + r.begin, r.size()), sum_at(range_at++));
    }
    kernels::sum(device, Vector<const ExactSum>(sums_.data() + first, range_at - first), sum_at(part_at));
    sum_over(device, groups, sum_at(part_at++), top_place_);
  }
  kernels::sum(device, Vector<const ExactSum>(sums_.data() + parts_at, parts), sum_at(norm_at));
  sum_over(device, setup_.model, sum_at(norm_at), top_place_);
}

template <class M>
void UpdateDecision<M>::decide(Device& device, Vector<const double> losses, Vector<const M> gradient,
                               const kernels::UpdateLimits& limits) {
  sum_losses(device, losses);
  sum_squares(device, gradient);
  kernels::update_scalars<M>(device, sum_at(loss_at), sum_at(norm_at), limits, scalars_);
  if (!setup_.all.empty()) agree(device);
}

template <class M>
void UpdateDecision<M>::agree(Device& device) {
  kernels::write_compared(device, scalars_, compared_);
  for (comm::Group* group : setup_.all) {
    if (group->size() == 1) continue;
    comm::all_reduce(*group, compared_.data(), kernels::compared_values, comm::ReduceOp::max, device.stream());
  }
  kernels::require_agreement(device, compared_, scalars_);
}

template <class M>
const UpdateScalars& UpdateDecision<M>::read(Device& device) {
  queue_copy(device, scalars_, host_->scalars);
  device.fence();
  return host_->scalars.span().front();
}

template <class M>
double UpdateDecision<M>::loss_sum(Device& device, Vector<const double> losses) {
  sum_losses(device, losses);
  queue_copy(device, sum_at(loss_at), host_->loss);
  device.fence();
  return kernels::value(host_->loss.span().front());
}

NANOTRON_INSTANTIATE_MASTER_CLASS(UpdateDecision)

}  // namespace nanotron::optim
