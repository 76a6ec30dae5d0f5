#pragma once

// AdamW with moments in bf16, rounded stochastically: 4 bytes a parameter instead of 8. Nearest rounding would stop v,
// which changes by less than half a unit of bf16 per update where beta2 > 0.996; the expectation of a stochastically
// rounded mean is that of the mean in fp32. The random bits depend on run%seed, tensor, element and update only: the
// same on every grid, and after a resume.

#include "nanotron/deck/keys/optimizer.hpp"
#include "nanotron/kernels/optim/adamw.hpp"
#include "nanotron/optim/optimizer.hpp"

namespace nanotron::optim {

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

}  // namespace nanotron::optim
