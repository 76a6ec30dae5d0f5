#include "nanotron/optim/grad_clip.hpp"

#include <algorithm>
#include <cmath>

#include "nanotron/kernels/elementwise.hpp"

namespace nanotron::optim {

template <class M>
double global_norm(Device& device, comm::Group& model, const std::vector<model::FlatRange>& owned,
                   Vector<const M> gradient) {
  const Region region(device.timers(), "gradient norm");
  double squares = 0.0;
  for (const auto& [begin, end] : owned) {
    squares +=
        kernels::sum_of_squares<M>(device, Vector<const M>(gradient.data() + begin, end - begin));
  }
  return std::sqrt(comm::sum(model, squares));
}

double clip_factor(double norm, double max_norm) {
  return max_norm > 0.0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

template double global_norm<double>(Device&, comm::Group&, const std::vector<model::FlatRange>&,
                                    Vector<const double>);
template double global_norm<float>(Device&, comm::Group&, const std::vector<model::FlatRange>&,
                                   Vector<const float>);

}  // namespace nanotron::optim
