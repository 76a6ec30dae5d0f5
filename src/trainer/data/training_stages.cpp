#include "nanotron/trainer/data/training_stages.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "nanotron/base/error.hpp"
#include "nanotron/data/order/batch_ramp.hpp"
#include "nanotron/model/cost.hpp"

namespace nanotron::trainer {

TrainingStages::TrainingStages(const deck::Config& config) : stages_(data::training_stages(config)) {
  for (const data::TrainingStage& stage : stages_) configs_.push_back(data::stage_config(config, stage));
}

void TrainingStages::share_bucket_size() {
  const auto run = std::make_shared<const deck::Config>(configs_.front());
  for (std::size_t k = 1; k < size(); ++k) {
    configs_[k].parallel.bucket_mb = run->parallel.bucket_mb;
    configs_[k].run_of = run;
  }
}

TrainingStages::Point TrainingStages::end_of(std::size_t stage, const Point& entered) const {
  const data::BatchRamp ramp(configs_[stage].data);
  const std::int64_t left = configs_[stage].run.steps - entered.step;
  const std::int64_t steps =
      stage + 1 < size() ? std::min(left, ramp.steps_until(entered.sample, stages_[stage + 1].first_sample)) : left;
  return {entered.step + steps, ramp.after(entered.sample, steps)};
}

double TrainingStages::flops_after(std::size_t stage, const Point& end) const {
  double flops = 0.0;
  Point at = end;
  for (std::size_t k = stage + 1; k < size(); ++k) {
    const Point next = end_of(k, at);
    flops += static_cast<double>(next.sample - at.sample) * flops_per_sample(configs_[k]);
    at = next;
  }
  return flops;
}

std::string TrainingStages::table(const std::vector<index_t>& sequences) const {
  if (!has_several()) return "";
  std::string text = fmt::format("{} stages of training\n  {:>12} {:>12} {:>10} {:>15} {:>17} {:>16} {:>11}{}", size(),
                                 "from token", "of the run", "steps", "sequence_length", "global_batch_size",
                                 "micro_batch_size", "rope_theta", sequences.empty() ? "" : "  sequences     epochs");
  for (std::size_t k = 0; k < size(); ++k) {
    const deck::Config& c = configs_[k];
    const Point begin = begin_of(k), end = end_of(k, begin);
    text += fmt::format("\n  {:>12g} {:>12} {:>10} {:>15} {:>17} {:>16} {:>11g}",
                        static_cast<double>(stages_[k].from_token), stages_[k].first_token,
                        std::max<std::int64_t>(end.step - begin.step, 0), c.data.sequence_length,
                        c.data.global_batch_size, c.data.micro_batch_size, c.model.rope_theta);
    if (!sequences.empty()) {
      text += fmt::format(
          " {:>10} {:>10.3f}", sequences[k],
          static_cast<double>(std::max<index_t>(end.sample - begin.sample, 0)) / static_cast<double>(sequences[k]));
    }
    if (end.step <= begin.step) text += "  (not reached)";
  }
  return text;
}

double flops_per_sample(const deck::Config& config) {
  return static_cast<double>(config.data.sequence_length) * model::training_flops_per_token(config);
}

deck::ModelConfig model_of_checkpoint(const deck::Config& stage, const io::CheckpointInfo& checkpoint) {
  const deck::Config& run = deck::whole_run(stage);
  const std::vector<data::TrainingStage> stages = data::training_stages(run);
  const index_t cursor = checkpoint.state.sample_cursor;
  for (std::size_t k = data::stage_at(stages, cursor); k > 0; --k) {
    const deck::Config before = data::stage_config(run, stages[k - 1]);
    if (cursor >= stages[k].first_sample + before.data.global_batch_size) break;  // stage k has done a step
    if (checkpoint.model.rope_theta == before.model.rope_theta) return before.model;
  }
  return stage.model;
}

deck::Config config_of_checkpoint(const deck::Config& config, MPI_Comm world) {
  const TrainingStages stages(config);
  if (!stages.has_several()) return config;
  Log silent(false);
  const auto reader =
      io::CheckpointReader::find(world, deck::checkpoint_directory(config), config.checkpoint.resume, silent);
  return stages.config(reader ? stages.before(reader->info().state.sample_cursor) : 0);
}

}  // namespace nanotron::trainer
