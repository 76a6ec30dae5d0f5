#include "adamw_bf16_moments.hpp"

#include "adamw.hpp"
#include "nanotron/base/random.hpp"
#include "nanotron/deck/config.hpp"

namespace nanotron::optim {

std::vector<AdamwBf16Moments::Part> AdamwBf16Moments::parts_of(const deck::Config& config,
                                                               const model::ParameterTable& table,
                                                               const nn::ParameterLayouts& layouts) {
  std::vector<Part> parts;
  for (const nn::ParameterSpec& spec : table.specs) {
    for (index_t layer = 0; layer < spec.local_layers(); ++layer) {
      const index_t begin = spec.offset_of(layer);
      for (UpdatePart& part : update_parts(Range{begin, begin + spec.local_size()}, layouts)) {
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

AdamwBf16Moments::AdamwBf16Moments(const deck::Config& config, const model::ParameterTable& table,
                                   const nn::ParameterLayouts& layouts, Arena& arena)
    : config_(config.optimizer),
      parts_(parts_of(config, table, layouts)),
      layout_(layouts.moments),
      exp_avg_(arena.take<bf16>(MemoryKind::optimizer, layout_.size())),
      exp_avg_sq_(arena.take<bf16>(MemoryKind::optimizer, layout_.size())) {}

void AdamwBf16Moments::update(Device& device, const UpdatedWeights<float>& weights, Vector<const float> gradient,
                              double learning_rate, Vector<const kernels::UpdateScalars> scalars) {
  for (const auto& [p, noise] : parts_) {
    kernels::adamw_bf16_moments(
        device, weights.master_of(p), Vector<const float>(gradient.data() + p.gradient, p.size()),
        Vector<bf16>(exp_avg_.data() + p.moments, p.size()), Vector<bf16>(exp_avg_sq_.data() + p.moments, p.size()),
        adamw_step(config_, p, steps_ + 1, learning_rate), scalars, noise, weights.copy_of(p));
  }
}

std::vector<Moment<float>> AdamwBf16Moments::moments() const {
  return {{"exp_avg", Covers::all, layout_, exp_avg_}, {"exp_avg_sq", Covers::all, layout_, exp_avg_sq_}};
}

}  // namespace nanotron::optim
