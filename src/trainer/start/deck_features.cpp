#include "nanotron/trainer/start/deck_features.hpp"

#include <fmt/format.h>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/data/data_checks.hpp"
#include "nanotron/data/order/training_stages.hpp"
#include "nanotron/deck/layer_recompute.hpp"
#include "nanotron/deck/read_deck.hpp"
#include "nanotron/io/checkpoint/checkpoint.hpp"
#include "nanotron/model/adapters/adapters.hpp"
#include "nanotron/model/cost.hpp"
#include "nanotron/model/later_tokens/later_tokens.hpp"
#include "nanotron/model/parameters/layer_layout.hpp"
#include "nanotron/model/parameters/parametrization.hpp"
#include "nanotron/nn/checks.hpp"
#include "nanotron/nn/preference/pair_losses.hpp"
#include "nanotron/optim/lr_schedule.hpp"
#include "nanotron/optim/optimizer.hpp"
#include "nanotron/parallel/pipeline/pipeline_partition.hpp"
#include "nanotron/parallel/reducers/reducers.hpp"
#include "nanotron/tensor/layout_checks.hpp"

namespace nanotron::trainer {
namespace {

void check_run(const deck::Config& c, deck::Findings& f) {
  if (c.run.output_dir.empty()) {
    f.error({"run.output_dir"}, "output_dir is empty", "a folder, for example 'run'");
  }
  if (f.is_valid({"run.hang_timeout"}) && c.run.hang_timeout > 0.0 && c.run.hang_timeout < 1.0) {
    f.error({"run.hang_timeout"}, "hang_timeout is less than a second: a rank that waits for a processor would be late",
            "0 (no watchdog) or at least 1 s");
  }
  if (f.is_valid({"run.on_bad_step", "run.max_nonfinite_steps"}) && c.run.on_bad_step == deck::OnBadStep::roll_back &&
      c.run.max_nonfinite_steps == 0) {
    f.error({"run.on_bad_step", "run.max_nonfinite_steps"},
            "on_bad_step = 'roll_back' and max_nonfinite_steps = 0, which ends the run at the first bad step",
            "max_nonfinite_steps >= 1: how often training may go back from steps after the same checkpoint");
  }
  if (f.is_valid({"run.on_bad_step", "data.stages"}) && c.run.on_bad_step == deck::OnBadStep::roll_back && !c.run_of &&
      data::training_stages(c).size() > 1) {
    f.error({"run.on_bad_step", "data.stages"}, "on_bad_step = 'roll_back' in a run of several stages of training",
            "'skip', or one stage for each run");
  }
  if (f.is_valid({"run.spike_factor"}) && c.run.spike_factor > 0.0 && c.run.spike_factor <= 1.0) {
    f.error({"run.spike_factor"}, "spike_factor is at most 1: half of all steps would be bad", "0 or more than 1");
  }
  if (f.is_valid({"run.wall_time_limit", "run.wall_time_margin"}) && c.run.wall_time_limit > 0 &&
      c.run.wall_time_margin >= c.run.wall_time_limit) {
    f.error({"run.wall_time_margin", "run.wall_time_limit"},
            "wall_time_margin is not less than wall_time_limit: no step could run", "a margin below the limit");
  }
}

void check_stage_configs(const deck::Config& c, deck::Findings& f);

// A row per feature: its check and, if needed, the function that fills in keys of value 0. Errors at the same key are
// reported in this order.
constexpr deck::Feature features[] = {
    {nn::check_attention, nn::fill_attention},
    {nn::check_compressed},
    {nn::check_norm},
    {model::check_layer_layout},
    {nn::check_query_key_norm},
    {nn::check_positions},
    {nn::check_activation},
    {model::check_parametrization},
    {model::check_later_tokens},
    {nn::check_tensor_parallel},
    {nn::check_mlp_tile},
    {nn::check_fp8},
    {nn::check_fp8_experts},
    {parallel::check_pipeline},
    {deck::check_recompute},
    {comm::check_grid},
    {optim::check_schedule},
    {check_run},
    {data::check_data},
    {io::check_checkpoint},
    {data::check_batch},
    {parallel::check_reducers},
    {nn::check_expert_shards},
    {optim::check_optimizer},
    {check_layout, fill_layout},  // checks degrees only where no error was found before
    {nn::check_expert_order, nn::fill_expert_order},
    {nn::check_moe, nn::fill_moe},
    {model::check_size},
    {model::check_lora},
    {nn::check_preference},
    {check_stage_configs},
};

// Each later stage of training as a deck of its own, where that of the run has no mistake.
void check_stage_configs(const deck::Config& c, deck::Findings& f) {
  if (f.errors() > 0 || c.run_of) return;
  const std::vector<data::TrainingStage> stages = data::training_stages(c);
  for (std::size_t k = 1; k < stages.size() && f.errors() == 0; ++k) {
    const deck::Config stage = data::stage_config(c, stages[k]);
    f.within("data.stages", fmt::format("in {}: ", data::name_of(stages[k])), [&] {
      for (const deck::Feature& feature : features) feature.check(stage, f);
    });
  }
}

}  // namespace

deck::Features deck_features() { return features; }

deck::Config read_deck(const std::string& path, const std::vector<std::string>& overrides, std::string* warnings) {
  return deck::read_deck(path, features, overrides, warnings);
}

deck::Config read_deck_text(const std::string& text, const std::string& file_name,
                            const std::vector<std::string>& overrides, std::string* warnings,
                            std::optional<std::int64_t> ranks,
                            const std::optional<std::map<std::string, std::string>>& lists) {
  return deck::read_deck_text(text, file_name, features, overrides, warnings, ranks, lists);
}

void resolve(deck::Config& config, std::int64_t world_size) { deck::resolve(config, world_size, features); }

}  // namespace nanotron::trainer
