#include "nanotron/trainer/report/pipeline_text.hpp"

#include <fmt/format.h>

#include "nanotron/deck/config.hpp"
#include "nanotron/deck/table/parameters.hpp"
#include "nanotron/parallel/pipeline/pipeline_partition.hpp"

namespace nanotron::trainer {
namespace {

constexpr index_t chart_units = 72;

std::string stage_line(const deck::Config& c, const parallel::PipelineSchedule& schedule, const std::vector<Range>& cut,
                       int stage) {
  const Range layers = cut[static_cast<std::size_t>(stage)];
  const model::BlockCosts flops = model::block_flops(c);
  const double whole = model::training_flops_per_token(c);
  const bool first = stage == 0, last = stage + 1 == schedule.stages();
  const double share =
      (flops.layers.sum(layers.begin, layers.end) + (first ? flops.embedding : 0.0) + (last ? flops.head : 0.0)) /
      whole;
  return fmt::format("  stage {:>3} on pp rank {:>3}: layers {:>3} to {:>3}{}{}; {:.1f} % of the FLOPs\n", stage,
                     schedule.location_of(stage).rank, layers.begin, layers.end - 1, first ? ", embedding" : "",
                     last ? ", norm and head" : "", 100.0 * share);
}

}  // namespace

std::string describe_pipeline(const deck::Config& config) {
  if (config.parallel.pp == 1) return {};
  const parallel::PipelineSchedule schedule = parallel::schedule_of(config);
  const std::vector<Range> cut = parallel::stage_layers(config);
  std::string text =
      fmt::format("pipeline: {}, {} ranks, {} stages, {} micro-batches; bubble {:.1f} % of the step in theory\n",
                  std::get<std::string>(deck::parameter("parallel", "pp_schedule").get(config)), schedule.ranks,
                  schedule.stages(), schedule.micro_batches, 100.0 * parallel::simulate(schedule).bubble());
  if (config.parallel.pp_cut == deck::PpCut::time && config.parallel.pp_layers.empty()) {
    text += "  the run measures the blocks and splits by their times (pp_cut = 'time'); by modelled FLOPs:\n";
  }
  for (int stage = 0; stage < schedule.stages(); ++stage) text += stage_line(config, schedule, cut, stage);
  return text;
}

std::string draw_pipeline(const deck::Config& config) {
  if (config.parallel.pp == 1) return {};
  const parallel::PipelineSchedule schedule = parallel::schedule_of(config);
  const char* const legend =
      schedule.virtual_stages == 1 ? "F forward, B backward of micro-batch 0, 1, ..."
      : schedule.placement == parallel::Placement::vee
          ? "F forward, I gradient of the input, W of the weights, of micro-batch 0, 1, ...; a, b: virtual stage"
          : "F forward, B backward of micro-batch 0, 1, ...; a, b, ...: virtual stage";
  return describe_pipeline(config) + fmt::format("  {}; one column per forward of a virtual stage\n{}", legend,
                                                 parallel::chart(schedule, chart_units));
}

}  // namespace nanotron::trainer
