#include "nanotron/kernels/reduction/exact_sum.hpp"
#include "nanotron/optim/grad_clip.hpp"
#include "nanotron/trainer/forward_backward.hpp"
#include "nanotron/trainer/roofline.hpp"
#include "nanotron/trainer/training_state.hpp"
#include "norm_parts.hpp"

namespace nanotron::trainer {

// The calls of Trainer::train_step, in its order.
WorkList step_work(const deck::Config& config, const comm::GridCoordinate& at, Processor processor, EventOrder order) {
  WorkList work(order);
  with_scalar_type(config.precision.compute, [&]<class T>(std::type_identity<T>) {
    using M = master_t<T>;
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
    work.add_finish();
    kernels::sum(device, state.loss_rows);
    optim::global_norm<M>(device, grid.model(), norm_parts(state, grid), p.gradient);
    state.optimizer->update(device, {p.master, state.model.compute_copy()}, p.gradient, 1.0, 1.0);
    state.model.refresh_after_update();
    state.model.finish_weights();
    work.add_finish();
  });
  return work;
}

}  // namespace nanotron::trainer
