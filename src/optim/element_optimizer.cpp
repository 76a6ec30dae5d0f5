// States in bf16 are rounded stochastically: nearest rounding would stop a mean that changes by less than half a unit
// of bf16 per update, such as AdamW's v where beta2 > 0.996; the expectation of a stochastically rounded mean is that
// of the mean in fp32. The random bits depend on run%seed, tensor, element and update only: the same on every grid, and
// after a resume.

#include "element_optimizer.hpp"

namespace nanotron::optim {

std::vector<NoisyPart> noisy_parts(const deck::Config& config, const OptimizerSetup& setup) {
  std::vector<NoisyPart> parts;
  if (config.precision.moments == deck::MomentType::master) {
    for (const UpdatePart& part : update_parts(setup.table, setup.layouts)) parts.push_back({part});
    return parts;
  }
  for (const nn::ParameterSpec& spec : setup.table.specs) {
    for (index_t layer = 0; layer < spec.local_layers(); ++layer) {
      const index_t begin = spec.offset_of(layer);
      for (UpdatePart& part : update_parts(Range{begin, begin + spec.local_size()}, setup.layouts)) {
        part.decays = spec.decays;
        part.fan_in_ratio = spec.fan_in_ratio;
        parts.push_back({part,
                         {.seed = static_cast<std::uint64_t>(config.run.seed),
                          .stream = stream_id("moments of " + spec.name),
                          .index = spec.logical_index(layer),
                          .begin = part.range.begin - begin}});
      }
    }
  }
  return parts;
}

}  // namespace nanotron::optim
