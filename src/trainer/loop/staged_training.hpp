#pragma once

// The stages of a run, one trainer after the other. Private to the trainer layer.

#include <algorithm>
#include <memory>
#include <vector>

#include "nanotron/base/flight_recorder.hpp"
#include "nanotron/trainer/data/run_stages.hpp"
#include "nanotron/trainer/loop/trainer.hpp"
#include "nanotron/trainer/state/run_memory.hpp"
#include "trainer/checkpoint/neighbours.hpp"
#include "trainer/report/model_summary.hpp"

namespace nanotron::trainer {

/// What all stages work with.
struct StageContext {
  const Provenance& provenance;
  comm::ProcessGrid& grid;
  std::vector<Loaders>& loaders;  // of each stage
  Log& log;
  io::NeighbourCopies* copies;  // null: none
};

/// At a boundary the trainer ends with a checkpoint and is gone before the next one takes the same memory and resumes
/// from it: a restart inside of the process. All functions are collective over the world of the grid.
template <class T>
class StagedTraining {
 public:
  /// plans: of each stage, on this rank. The largest is allocated now.
  StagedTraining(RunStages& stages, const std::vector<MemoryPlan>& plans, Device& device, const StageContext& context)
      : stages_(stages),
        plans_(plans),
        device_(device),
        context_(context),
        largest_(static_cast<std::size_t>(
            std::ranges::max_element(plans, {}, [](const MemoryPlan& p) { return p.total(); }) - plans.begin())),
        memory_(in_stage(stages, largest_,
                         [&] { return RunMemory(stages.config(largest_), context.grid, plans[largest_]); })) {}

  /// Finds the state that the deck names, and resumes in its stage.
  void begin() {
    const deck::Config& run = stages_.config(0);
    auto found = stages_.has_several() ? newest_state(context_.grid.world().mpi(), run, context_.copies, context_.log)
                                       : std::nullopt;
    make_trainer(found ? stages_.at(found->info().state.sample_cursor) : 0, std::move(found));
  }

  /// Before the trainer of the present stage runs, to the step that is returned. cost: what is not of a stage.
  std::int64_t enter(Progress& progress, const StepCost& cost) {
    begin_ = {trainer_->step(), trainer_->sample_cursor()};
    const RunStages::Point end = stages_.end_of(stage_, begin_);
    announce(progress, cost, end);
    return end.step;
  }

  /// After that: whether the run goes on with the next stage, which is ready then. reason: of the trainer; or why there
  /// is no time for the next stage.
  bool goes_on(StopReason& reason, StopConditions& stop, Progress& progress, const StepCost& cost) {
    const auto samples = static_cast<double>(trainer_->sample_cursor() - begin_.sample);
    tokens_ += samples * static_cast<double>(config().data.sequence_length);
    flops_ += samples * flops_per_sample(config());
    if (reason != StopReason::none || trainer_->step() == config().run.steps) return false;
    reason = next_stage(stop, progress, cost);
    return reason == StopReason::none;
  }

  const deck::Config& config() const { return stages_.config(stage_); }
  Trainer<T>& trainer() { return *trainer_; }
  double tokens() const { return tokens_; }  // of the steps so far
  double flops() const { return flops_; }

  /// Of a step of the present stage; the peaks are those of `cost`.
  StepCost cost_of_step(const StepCost& cost) const {
    const auto samples = static_cast<double>(config().data.global_batch_size);
    return {.tokens = samples * static_cast<double>(config().data.sequence_length),
            .flops = samples * flops_per_sample(config()),
            .gemm_peak = cost.gemm_peak,
            .stated_peak = cost.stated_peak};
  }

 private:
  void announce(Progress& progress, const StepCost& cost, const RunStages::Point& end) {
    const bool is_last = end.step == config().run.steps;
    progress.enter(config(), cost_of_step(cost),
                   {.from_step = is_last ? 0 : end.step, .flops = is_last ? 0.0 : stages_.flops_after(stage_, end)});
  }

  // Into the stage that begins here, unless its first step would be too late.
  StopReason next_stage(StopConditions& stop, Progress& progress, const StepCost& cost) {
    const NotedRegion region("resume");
    const RunStages::Point here{trainer_->step(), trainer_->sample_cursor()};
    const std::size_t next = stages_.at(here.sample);
    stage_ = next;
    announce(progress, cost, stages_.end_of(next, here));
    const StopReason late = stop.check(context_.grid.world(), progress.steps(), progress.recent_seconds());
    if (late != StopReason::none) return late;
    deck::Config& config = stages_.configs()[next];
    context_.log.info("step {:>7}/{}  {} begins: {} sequences of {} tokens", here.step, config.run.steps,
                      stages_.name(next), config.data.global_batch_size, config.data.sequence_length);
    config.checkpoint.resume = io::step_folder(deck::checkpoint_directory(config), here.step).string();
    in_stage(stages_, next, [&] { make_trainer(next, {}); });
    return StopReason::none;
  }

  void make_trainer(std::size_t stage, std::optional<io::CheckpointReader> checkpoint) {
    stage_ = stage;
    trainer_.reset();
    Arena& arena = stages_.has_several() ? memory_.arena_of(plans_[stage]) : memory_.arena();
    trainer_ = std::make_unique<Trainer<T>>(config(), context_.provenance, context_.grid, device_, arena,
                                            context_.loaders[stage], context_.log, context_.copies);
    context_.log.info("attention: {}", kernels::attention_library<T>(device_, one_head(config())));
    trainer_->resume(std::move(checkpoint));
  }

  RunStages& stages_;
  std::vector<MemoryPlan> plans_;
  Device& device_;
  StageContext context_;
  std::size_t largest_, stage_ = 0;
  RunStages::Point begin_;  // where the trainer of this stage began in this start
  RunMemory memory_;
  std::unique_ptr<Trainer<T>> trainer_;
  double tokens_ = 0.0, flops_ = 0.0;
};

}  // namespace nanotron::trainer
