#pragma once

// AdamW, and the makers of the other optimizers, whose classes are in the sources.

#include <memory>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/keys/optimizer.hpp"
#include "nanotron/kernels/optim/adamw.hpp"
#include "nanotron/optim/optimizer.hpp"

namespace nanotron::optim {

/// Refuses Muon with precision%reproducible = 'layout': its sums depend on the grid.
void check_muon(const deck::Config& config, deck::Findings& findings);

// AdamW (Loshchilov and Hutter 2019) for the elements of the flat parameters that this rank updates, and their moments.

/// The update of a part, the steps-th one.
kernels::AdamwStep adamw_step(const deck::OptimizerConfig& config, const UpdatePart& part, std::int64_t steps,
                              double learning_rate);

/// No communication.
template <class M>
class Adamw : public Optimizer<M> {
 public:
  /// Updates the elements in layouts.moments. over: which tensors these belong to, for the checkpoint.
  Adamw(const deck::OptimizerConfig& config, const model::ParameterTable& table, const nn::ParameterLayouts& layouts,
        Covers over, Arena& arena);

  void update(Device& device, const UpdatedWeights<M>& weights, Vector<const M> gradient, double learning_rate,
              Vector<const kernels::UpdateScalars> scalars) override;
  std::string name() const override { return "adamw"; }
  std::vector<Moment<M>> moments() const override;
  std::int64_t steps() const override { return steps_; }
  void set_steps(std::int64_t steps) override { steps_ = steps; }

 private:
  deck::OptimizerConfig config_;
  std::vector<UpdatePart> parts_;
  Covers over_;
  nn::BufferLayout layout_;
  Vector<M> exp_avg_;
  Vector<M> exp_avg_sq_;
  std::int64_t steps_ = 0;
};

template <class M>
std::unique_ptr<Optimizer<M>> make_muon(const deck::Config& config, const OptimizerSetup& setup, Arena& arena);

std::unique_ptr<Optimizer<float>> make_adamw_bf16_moments(const deck::Config& config, const OptimizerSetup& setup,
                                                          Arena& arena);

/// The table with ParameterSpec::decays as the patterns of optimizer%no_weight_decay say (weight_decay.cpp).
model::ParameterTable with_weight_decay(model::ParameterTable table, const std::string& patterns);
/// Reports patterns that fit no parameter of the model.
void check_weight_decay(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::optim
