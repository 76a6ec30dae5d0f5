#pragma once

// The gradient reducers of a rank, one per section of its parameters.

#include <memory>
#include <vector>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/parallel/reducers/gradient_reducer.hpp"

namespace nanotron::parallel {

/// What the strategy of gradient reduction requires of zero_stage, zero_size, the grid and precision.
void check_reducers(const deck::Config& config, deck::Findings& findings);

/// Whether a reduction depends on the gradients of its step alone: a step can be computed again with the same result.
bool keeps_no_state(const deck::ParallelConfig& config);

/// The deck's strategy for one section: the first row of the table in strategies.cpp that applies.
template <class T>
std::unique_ptr<GradientReducer<T>> make_reducer(const ReducerContext<T>& context);

/// Each function calls that of GradientReducer for all sections.
template <class T>
class Reducers {
 public:
  using M = master_t<T>;
  /// Allocates from the arena (planning or real). config is resolved. model, grid and device must outlive it.
  Reducers(const deck::Config& config, const model::Transformer<T>& model, const model::Sharding& sharding,
           comm::ProcessGrid& grid, Device& device, Arena& arena);

  void begin_step(index_t micro_batches) {
    for (auto& r : reducers_) r->begin_step(micro_batches);
  }
  void begin(index_t source) {
    for (auto& r : reducers_) r->begin(source);
  }
  void end(index_t source) {
    for (auto& r : reducers_) r->end(source);
  }
  /// Runs `backward`, which adds once to the gradients of a source (model::ParameterTable).
  template <class F>
  void accumulate(index_t source, const F& backward) {
    begin(source);
    backward();
    end(source);
  }
  void end_inputs(index_t source) {
    for (auto& r : reducers_) r->end_inputs(source);
  }
  void finish() {
    for (auto& r : reducers_) r->finish();
  }
  void reset() {
    for (auto& r : reducers_) r->reset();
  }

  /// One entry per section that has state.
  std::vector<PersistentState<M>> persistent_state() const;
  comm::StepTraffic traffic() const;
  double exposed_seconds() const;

 private:
  std::vector<std::unique_ptr<GradientReducer<T>>> reducers_;
};

}  // namespace nanotron::parallel
