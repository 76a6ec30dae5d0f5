#pragma once

// A trainer with everything that must outlive it, for tests that look at it between its steps.

#include "nanotron/trainer/loop/trainer.hpp"
#include "nanotron/trainer/plan/plan.hpp"
#include "nanotron/trainer/state/run_resources.hpp"

namespace nanotron::test {

/// T: what precision%compute names; data%path is one file. config: resolved for the ranks of world, and outlives it.
/// Collective.
template <class T>
class TrainerRun {
 public:
  TrainerRun(const deck::Config& config, MPI_Comm world)
      : grid_(trainer::make_grid(world, config)),
        log_(false, grid_.world().rank()),
        device_(timers_, trainer::gemm_mode_of(config)),
        tokens_(config.data.path),
        loaders_(loaders_of(config)),
        memory_(config, grid_, trainer::plan_step(config, grid_.coordinate()).memory),
        trainer_(config, {}, grid_, device_, memory_.arena(), loaders_, log_) {}

  trainer::Trainer<T>& operator*() { return trainer_; }
  trainer::Trainer<T>* operator->() { return &trainer_; }
  Device& device() { return device_; }
  comm::ProcessGrid& grid() { return grid_; }
  const data::BatchLoader& training() const { return loaders_.training; }

 private:
  trainer::Loaders loaders_of(const deck::Config& config) const {
    const auto of = [&](data::Split split) {
      return data::BatchLoader(config.data, static_cast<std::uint64_t>(config.run.seed),
                               std::span<const data::TokenFile>(&tokens_, 1), split, grid_.dp_rank(), grid_.shape().dp,
                               trainer::sequence_layout(config)[grid_.cp_rank()],
                               trainer::neighbouring_sequences(config));
    };
    trainer::Loaders loaders{of(data::Split::training), {}};
    if (config.data.validation_fraction > 0.0) loaders.validation.push_back(of(data::Split::validation));
    return loaders;
  }

  comm::ProcessGrid grid_;
  Log log_;
  Timers timers_;
  Device device_;
  data::TokenFile tokens_;
  trainer::Loaders loaders_;
  trainer::RunMemory memory_;
  trainer::Trainer<T> trainer_;
};

}  // namespace nanotron::test
