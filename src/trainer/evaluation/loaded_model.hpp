#pragma once

// A model with the weights of a checkpoint, for forward passes on any grid.

#include "nanotron/comm/session/mpi_session.hpp"
#include "nanotron/trainer/checkpoint/checkpointing.hpp"
#include "nanotron/trainer/plan/plan.hpp"
#include "nanotron/trainer/start/gemm_algorithms.hpp"
#include "nanotron/trainer/state/forward_backward.hpp"
#include "nanotron/trainer/state/run_resources.hpp"
#include "nanotron/trainer/state/token_buffer.hpp"
#include "trainer/checkpoint/base_weights.hpp"

namespace nanotron::trainer {

template <class T>
struct LoadedModel {
  Device& device;
  TrainingState<T>& state;
  ForwardBackwardSchedule<T>& schedule;
  TokenBuffer& tokens;
};

/// Calls use(LoadedModel<T>). Takes the memory of a training. config is resolved. Collective.
template <class T, class Use>
void with_loaded_model(const deck::Config& config, comm::ProcessGrid& grid, io::CheckpointReader& reader, Log& log,
                       const Use& use) {
  Timers timers;
  Device device(timers, gemm_mode_of(config));
  use_gemm_algorithms(config, device, grid.world(), log);
  RunMemory memory(config, grid, plan_step(config, grid.coordinate()).memory);
  TrainingState<T> state(config, grid, device, memory.arena());
  const auto schedule = make_forward_backward<T>(config, grid, device, state);
  TokenBuffer tokens(state.inputs, state.targets, state.document_starts, state.sequence_tokens, state.later.inputs,
                     state.later.targets);
  const comm::AbortOnException guard;
  const std::string adapters = read_base(config, grid.world().mpi(), state.model, log);
  require_adapters(reader, adapters);
  read_trained(reader, state.model, {});
  state.model.refresh_compute_weights();
  schedule->compute_once_forward();
  use(LoadedModel<T>{device, state, *schedule, tokens});
  state.model.finish_weights();
}

/// The checkpoint that checkpoint%resume names. Error(data_error) if there is none,
/// Error(deck_error) if the deck has another model. Collective.
io::CheckpointReader open_for_evaluation(const deck::Config& config, comm::Group& world, Log& log);

}  // namespace nanotron::trainer
