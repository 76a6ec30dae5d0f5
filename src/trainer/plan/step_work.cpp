#include "nanotron/trainer/plan/roofline.hpp"
#include "nanotron/trainer/state/forward_backward.hpp"
#include "nanotron/trainer/state/router_monitor.hpp"
#include "nanotron/trainer/state/training_state.hpp"

namespace nanotron::trainer {

// The calls of Trainer::train_step, in its order.
WorkList step_work(const deck::Config& config, const comm::GridCoordinate& at, Processor processor, EventOrder order) {
  WorkList work(order);
  with_scalar_type(config.precision.compute, [&]<class T>(std::type_identity<T>) {
    comm::ProcessGrid grid = comm::ProcessGrid::planned(comm::shape_of(config), at, &work);
    Timers timers;
    Device device = Device::planning(timers, gemm_mode_of(config), processor, &work);
    Arena arena = Arena::planning(processor);
    TrainingState<T> state(config, grid, device, arena);
    const nn::ParameterBuffers<T>& p = state.model.parameters();
    const auto schedule = make_forward_backward<T>(config, grid, device, state);
    state.reducers.begin_step(state.micro_batches());
    schedule->forward_backward(1.0);
    state.reducers.finish();
    schedule->all_reduce_tied_gradients();
    make_router_monitor(config, grid, device, state.model.router_sums())->start();
    work.add_finish();
    state.decision.decide(device, state.loss_rows, p.gradient, {});
    state.optimizer->update(device, {p.master, state.model.compute_copy()}, p.gradient, 1.0, state.decision.scalars());
    state.model.refresh_after_update();
    state.model.finish_weights();
    work.add_finish();
    device.fence();  // of UpdateDecision::read
  });
  return work;
}

}  // namespace nanotron::trainer
