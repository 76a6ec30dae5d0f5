#include "nanotron/optim/grad_clip.hpp"

#include <algorithm>
#include <cmath>

#include "nanotron/kernels/reduction/exact_sum.hpp"

namespace nanotron::optim {

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
double global_norm(Device& device, comm::Group& model, const std::vector<NormPart>& parts, Vector<const M> gradient) {
  const Region region(device.timers(), "gradient norm");
  const auto over = [](comm::Group& group, const kernels::ExactSum& here) {
    return kernels::over_ranks(
        here, [&](std::int64_t x) { return comm::max(group, x); }, [&](std::int64_t x) { return comm::sum(group, x); });
  };
  kernels::ExactSum squares;
  for (const auto& [owned, groups] : parts) {
    kernels::ExactSum here;
    for (const Range& r : owned) {
      here += kernels::sum_of_squares<M>(device, Vector<const M>(gradient.data() + r.begin, r.size()));
    }
    for (comm::Group* group : groups) here = over(*group, here);
    squares += here;
  }
  return std::sqrt(kernels::value(over(model, squares)));
}

double clip_factor(double norm, double max_norm) {
  return max_norm > 0.0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

template double global_norm<double>(Device&, comm::Group&, const std::vector<NormPart>&, Vector<const double>);
template double global_norm<float>(Device&, comm::Group&, const std::vector<NormPart>&, Vector<const float>);

}  // namespace nanotron::optim
