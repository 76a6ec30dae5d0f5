#include "nanotron/optim/grad_clip.hpp"

#include <algorithm>
#include <cmath>

#include "nanotron/kernels/exact_sum.hpp"

namespace nanotron::optim {

std::vector<Range> answered_ranges(const model::ParameterTable& table, const nn::ParameterPlaces& places,
                                   const model::Sharding& sharding) {
  const nn::Placement answered = places.reduced.common(model::answered_places(table, sharding));
  std::vector<Range> ranges;
  for (const Range& owned : model::owned_ranges(table)) {
    for (const nn::Placement::Part& p : answered.within(owned)) ranges.push_back({p.at, p.at + p.range.size()});
  }
  return ranges;
}

template <class M>
double global_norm(Device& device, comm::Group& model, comm::Group& shards, const std::vector<Range>& answered,
                   Vector<const M> gradient) {
  const Region region(device.timers(), "gradient norm");
  const auto part = [&](const Range& r) { return Vector<const M>(gradient.data() + r.begin, r.size()); };
  double largest = 0.0;
  for (const Range& r : answered) largest = std::max(largest, kernels::largest_magnitude<M>(device, part(r)));
  largest = comm::max(model, comm::max(shards, largest));
  if (largest == 0.0 || !std::isfinite(largest * largest)) return largest * largest;
  const kernels::Quanta quanta(largest * largest);
  kernels::ExactParts squares;
  for (const Range& r : answered) {
    const kernels::ExactParts more = kernels::sum_of_squares<M>(device, part(r), quanta);
    squares.coarse += more.coarse;
    squares.fine += more.fine;
  }
  squares.coarse = comm::sum(model, comm::sum(shards, squares.coarse));
  squares.fine = comm::sum(model, comm::sum(shards, squares.fine));
  return std::sqrt(kernels::value(squares, quanta));
}

double clip_factor(double norm, double max_norm) {
  return max_norm > 0.0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

template double global_norm<double>(Device&, comm::Group&, comm::Group&, const std::vector<Range>&,
                                    Vector<const double>);
template double global_norm<float>(Device&, comm::Group&, comm::Group&, const std::vector<Range>&,
                                   Vector<const float>);

}  // namespace nanotron::optim
