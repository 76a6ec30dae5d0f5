#include "nanotron/data/order/training_stages.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "nanotron/data/order/batch_ramp.hpp"
#include "nanotron/deck/micro_batch.hpp"
#include "nanotron/deck/table/parameters.hpp"

namespace nanotron::data {
namespace {

void apply(const std::vector<deck::StageSetting>& settings, deck::Config& config) {
  for (const deck::StageSetting& setting : settings) setting.key->set(config, setting.value);
}

// The stage after `last`, whose configuration is `now` and becomes that of the next one.
TrainingStage next_stage(const TrainingStage& last, const deck::BlendStage& next, deck::Config& now) {
  const std::int64_t length = now.data.sequence_length;
  const std::int64_t tokens = std::max<std::int64_t>(next.from_token - last.first_token, 0);
  const BatchRamp ramp(now.data);
  const index_t steps =
      ramp.steps_until(last.first_sample, last.first_sample + tokens / length + (tokens % length > 0));
  TrainingStage stage{.from_token = next.from_token,
                      .first_sample = ramp.after(last.first_sample, steps),
                      .first_step = last.first_step + steps,
                      .cut = last.cut,
                      .settings = last.settings};
  stage.first_token = last.first_token + (stage.first_sample - last.first_sample) * length;
  stage.settings.insert(stage.settings.end(), next.settings.begin(), next.settings.end());
  apply(next.settings, now);
  now.data.rampup_batch_size = 0;
  if (now.data.sequence_length != length) stage.cut = {last.cut.number + 1, stage.first_sample, stage.first_token};
  return stage;
}

}  // namespace

std::vector<TrainingStage> training_stages(const deck::Config& run) {
  std::vector<TrainingStage> stages{TrainingStage{}};
  deck::Config now = run;
  for (const deck::BlendStage& stage : deck::blend_stages(run.data)) {
    if (!stage.settings.empty()) stages.push_back(next_stage(stages.back(), stage, now));
  }
  return stages;
}

deck::Config stage_config(const deck::Config& run, const TrainingStage& stage) {
  if (stage.settings.empty()) return run;
  deck::Config config = run;
  config.run_of = std::make_shared<deck::Config>(run);
  apply(stage.settings, config);
  config.data.cut = stage.cut;
  config.data.rampup_batch_size = config.data.rampup_increment = config.data.rampup_samples = 0;
  if (run.precision.batch_shards == run.data.global_batch_size)  // one per sequence, as filled in
    config.precision.batch_shards = config.data.global_batch_size;
  if (run.precision.reproducible == deck::Reproducible::layout)
    config.data.micro_batch_size = deck::parts_of_micro_batch(config.parallel);
  return config;
}

std::size_t stage_at(const std::vector<TrainingStage>& stages, index_t sample) {
  const auto after = std::ranges::upper_bound(stages, sample, {}, &TrainingStage::first_sample);
  return static_cast<std::size_t>(after - stages.begin()) - 1;
}

std::string name_of(const TrainingStage& stage) {
  return stage.from_token == 0 ? "the first stage"
                               : fmt::format("the stage from token {:g} on", static_cast<double>(stage.from_token));
}

void check_stages(const deck::Config& c, deck::Findings& f) {
  if (!f.is_valid({"data.stages", "data.sequence_length", "data.global_batch_size", "data.rampup_batch_size"})) return;
  const std::vector<TrainingStage> stages = training_stages(c);
  if (stages.size() == 1) return;
  const TrainingStage& second = stages[1];
  if (c.data.rampup_batch_size > 0 && BatchRamp(c.data).at(second.first_sample) != c.data.global_batch_size) {
    f.error({"data.stages", "data.rampup_samples"},
            fmt::format("{} begins at sample {}, within the batch-size ramp", name_of(second), second.first_sample),
            fmt::format("a later token, or rampup_samples <= {}", second.first_sample));
  }
  const bool cuts_anew = stages.back().cut.number > 0;
  if (cuts_anew && c.data.validation_fraction > 0.0 && c.data.sequences == deck::SequenceKind::stream &&
      f.is_valid({"data.validation_fraction", "data.sequences"})) {
    f.error({"data.stages", "data.validation_fraction"},
            "validation_fraction holds out sequences; with another sequence_length these contain tokens that the run "
            "has trained on",
            "validation_path instead of validation_fraction", "or sequences = 'documents', which holds out documents");
  }
}

std::uint64_t seed_of_cut(std::uint64_t seed, const deck::SequenceCut& cut) {
  if (cut.number == 0) return seed;
  const std::string name = fmt::format("cut {}", cut.number);
  return seed ^ XXH3_64bits(name.data(), name.size());
}

}  // namespace nanotron::data
