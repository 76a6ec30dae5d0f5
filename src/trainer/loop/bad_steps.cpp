// What the trainer does about a bad step (step_guard.hpp).

#include <cmath>
#include <utility>

#include "nanotron/base/error.hpp"
#include "nanotron/trainer/faults/first_nonfinite.hpp"
#include "nanotron/trainer/loop/trainer.hpp"

namespace nanotron::trainer {
namespace {

// After a non-finite loss or gradient norm: the newest checkpoint may already hold diverged weights.
std::string where_to_resume(const std::filesystem::path& newest_known_good) {
  if (newest_known_good.empty())
    return "there is no known good checkpoint: --set checkpoint.resume=none starts from scratch";
  return fmt::format("then resume from the newest checkpoint whose next step was finite: --set checkpoint.resume='{}'",
                     newest_known_good.string());
}

bool is_finite(const StepResult& r) { return std::isfinite(r.loss) && std::isfinite(r.grad_norm); }

std::string numbers_of(const StepResult& r) {
  return fmt::format("loss {}, gradient norm {}{}", r.loss, r.grad_norm,
                     is_finite(r) ? "" : ", first non-finite: " + r.first_nonfinite);
}

}  // namespace

// The device has skipped the update. What follows is data or numerics: hardware has ended the run (faults.hpp).
template <class T>
void Trainer<T>::handle_bad_step(StepResult& r) {
  state_.finish_update(device_);
  if (loaded_.targets == 0) {  // nothing to go back for
    state_.reducers.reset();
    log_.warn("step {}: no target of global samples {} to {} counts in the loss: update skipped", r.step,
              r.first_sample, r.first_sample + r.samples - 1);
    return;
  }
  if (!is_finite(r)) {
    r.first_nonfinite = first_nonfinite(device_, grid_, state_, sequence_layout(config_)[grid_.cp_rank()],
                                        loaders_.training, r.first_sample);
  }
  state_.reducers.reset();
  if (config_.run.on_bad_step == deck::OnBadStep::roll_back && roll_back(r)) return;
  count_bad_step(r, ++skipped_in_a_row_, "in a row");
  log_.warn("step {}: {}: update skipped", r.step, numbers_of(r));
}

// More than run%max_nonfinite_steps end the run: in a row where they are skipped, after one checkpoint where training
// goes back.
template <class T>
void Trainer<T>::count_bad_step(const StepResult& r, std::int64_t bad, const std::string& since) {
  if (bad <= config_.run.max_nonfinite_steps) return;
  checkpointing_.finish();
  fail(ExitCode::numerics_error,
       {.what = fmt::format("step {}: {}", r.step,
                            is_finite(r) ? "the gradient norm is a spike" : "the numbers are not finite"),
        .expected = is_finite(r)
                        ? fmt::format("a gradient norm of at most {:.4g} (run%spike_factor)", faults_.largest_norm())
                        : "a finite loss and gradient norm",
        .found = fmt::format("{}, {} {}", numbers_of(r), bad, since),
        .where = fmt::format("global samples {} to {}", r.first_sample, r.first_sample + r.samples - 1),
        .change = fmt::format("a lower optimizer%learning_rate, a longer schedule%warmup_steps, or "
                              "run%max_nonfinite_steps > 0 to skip such updates; {}",
                              where_to_resume(checkpointing_.newest_known_good()))});
}

// Those before one that is known good are too.
template <class T>
std::optional<io::CheckpointReader> Trainer<T>::newest_to_go_back_to() const {
  std::filesystem::path folder = checkpointing_.newest_known_good();
  for (; !folder.empty(); folder = checkpointing_.older_than(folder)) {
    try {
      return io::CheckpointReader::open(grid_.world().mpi(), folder);
    } catch (const Error& error) {
      if (error.exit_code() != ExitCode::data_error) throw;
      log_.warn("{}", reason(error));
    }
  }
  return std::nullopt;
}

// To the newest checkpoint that is known good; the batches since then are left out (Chowdhery et al. 2022, "PaLM",
// section 5.1). False: there is none.
template <class T>
bool Trainer<T>::roll_back(StepResult& r) {
  finished_ = checkpointing_.finish();
  std::optional<io::CheckpointReader> checkpoint = newest_to_go_back_to();
  if (!checkpoint) {
    log_.warn("step {}: no checkpoint to go back to", r.step);
    return false;
  }
  const std::int64_t to = checkpoint->info().state.step;
  rolled_back_ = to == std::exchange(rolled_back_to_, to) ? rolled_back_ + 1 : 1;
  count_bad_step(r, rolled_back_, fmt::format("after the checkpoint of step {}", to));
  const index_t next = r.first_sample + r.samples;
  resume(std::move(checkpoint));
  log_.warn("step {}: {}: rolled back to step {}, leaving out global samples {} to {}", r.step, numbers_of(r),
            counters_.step, counters_.sample_cursor, next - 1);
  r.left_out_from = std::exchange(counters_.sample_cursor, next);
  r.rolled_back = true;
  return true;
}

#define NANOTRON_INSTANTIATE(T) template void Trainer<T>::handle_bad_step(StepResult&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::trainer
