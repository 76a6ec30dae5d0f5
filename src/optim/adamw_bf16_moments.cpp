// AdamW with moments in bf16, rounded stochastically: 4 bytes a parameter instead of 8. Nearest rounding would stop v,
// which changes by less than half a unit of bf16 per update where beta2 > 0.996; the expectation of a stochastically
// rounded mean is that of the mean in fp32. The random bits depend on run%seed, tensor, element and update only: the
// same on every grid, and after a resume.

#include <memory>

#include "nanotron/base/random.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/keys/optimizer.hpp"
#include "nanotron/kernels/optim/adamw.hpp"
#include "nanotron/optim/optimizer.hpp"
#include "optim/optimizers.hpp"

namespace nanotron::optim {
namespace {

/// No communication.
class AdamwBf16Moments final : public Optimizer<float> {
 public:
  /// Updates the elements in layouts.moments.
  AdamwBf16Moments(const deck::Config& config, const model::ParameterTable& table, const nn::ParameterLayouts& layouts,
                   Arena& arena);

  void update(Device& device, const UpdatedWeights<float>& weights, Vector<const float> gradient, double learning_rate,
              Vector<const kernels::UpdateScalars> scalars) override;
  std::string name() const override { return "adamw"; }
  std::vector<Moment<float>> moments() const override;
  std::int64_t steps() const override { return steps_; }
  void set_steps(std::int64_t steps) override { steps_ = steps; }

 private:
  struct Part {
    UpdatePart part;
    kernels::RoundingNoise noise;
  };
  static std::vector<Part> parts_of(const deck::Config& config, const model::ParameterTable& table,
                                    const nn::ParameterLayouts& layouts);

  deck::OptimizerConfig config_;
  std::vector<Part> parts_;
  nn::BufferLayout layout_;
  Vector<bf16> exp_avg_, exp_avg_sq_;
  std::int64_t steps_ = 0;
};

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

}  // namespace

std::unique_ptr<Optimizer<float>> make_adamw_bf16_moments(const deck::Config& config, const OptimizerSetup& setup,
                                                          Arena& arena) {
  return std::make_unique<AdamwBf16Moments>(config, setup.table, setup.layouts, arena);
}

}  // namespace nanotron::optim
