#pragma once

// A run as a sequence of stages (data/order/training_stages.hpp), each with a configuration of its own: the trainer of
// one ends with a checkpoint, from which the trainer of the next resumes. A run without such stages is one stage.

#include <fmt/format.h>

#include <string>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/base/log.hpp"
#include "nanotron/comm/process_grid.hpp"
#include "nanotron/data/order/training_stages.hpp"
#include "nanotron/io/checkpoint/checkpoint_reader.hpp"
#include "nanotron/trainer/report/progress.hpp"

namespace nanotron::trainer {

class TrainingStages {
 public:
  /// config is resolved.
  explicit TrainingStages(const deck::Config& config);

  std::size_t size() const { return configs_.size(); }
  bool has_several() const { return size() > 1; }
  const deck::Config& config(std::size_t stage) const { return configs_[stage]; }
  std::vector<deck::Config>& configs() { return configs_; }
  /// What measurements chose for the run holds in all stages; the first has the configuration of the run.
  void share_bucket_size();
  const data::TrainingStage& stage(std::size_t stage) const { return stages_[stage]; }
  std::string name(std::size_t stage) const { return data::name_of(stages_[stage]); }

  /// The stage of the step that begins at this sample, and of the one that ended there (the first at sample 0).
  std::size_t at(index_t sample) const { return data::stage_at(stages_, sample); }
  std::size_t before(index_t sample) const { return at(sample > 0 ? sample - 1 : 0); }

  /// The step and the sample at which `stage` ends if the run entered it at these; at the latest run%steps.
  struct Point {
    std::int64_t step = 0;
    index_t sample = 0;
  };
  Point end_of(std::size_t stage, const Point& entered) const;
  /// Where the stage begins in a run from step 0.
  Point begin_of(std::size_t stage) const { return {stages_[stage].first_step, stages_[stage].first_sample}; }

  /// FLOPs of what comes after `stage`, which ends at this point.
  double flops_after(std::size_t stage, const Point& end) const;

  /// The table of the stages; empty for one. sequences: of each stage's training data, empty where they are not open.
  std::string table(const std::vector<index_t>& sequences) const;

 private:
  std::vector<data::TrainingStage> stages_;
  std::vector<deck::Config> configs_;
};

/// FLOPs of a sample.
double flops_per_sample(const deck::Config& config);

/// The model of a checkpoint as the deck of a stage expects it: with the keys of the stage that wrote it, this one or
/// the one before.
deck::ModelConfig model_of_checkpoint(const deck::Config& stage, const io::CheckpointInfo& checkpoint);

/// The configuration of the stage whose last step wrote the checkpoint that checkpoint%resume names. Collective.
deck::Config config_of_checkpoint(const deck::Config& config, MPI_Comm world);

/// Calls work(); in a run of several stages its errors begin with the stage.
template <class Work>
auto in_stage(const TrainingStages& stages, std::size_t stage, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    if (!stages.has_several()) throw;
    throw Error(error.exit_code(), format({.what = fmt::format("in {}: {}", stages.name(stage), reason(error))}));
  }
}

}  // namespace nanotron::trainer
