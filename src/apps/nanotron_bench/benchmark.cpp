#include "nanotron_bench/benchmark.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "nanotron/base/provenance.hpp"
#include "nanotron/model/cost.hpp"
#include "nanotron/trainer/program.hpp"
#include "nanotron_bench/collectives.hpp"
#include "nanotron_bench/kernels.hpp"
#include "nanotron_bench/products.hpp"
#include "nanotron_bench/steps.hpp"
#include "nanotron_bench/workload.hpp"

namespace nanotron::apps::bench {
namespace {

std::string headline(const deck::Config& c, const std::vector<ScalarType>& types) {
  std::string names;
  for (const ScalarType type : types) names += fmt::format("{}{}", names.empty() ? "" : ", ", name_of(type));
  return fmt::format(
      "grid dp {} x tp {}; hidden {}, {} layers, {} heads ({} key-value), ffn {}, vocabulary {}\n"
      "{} sequences of {} tokens a step, {} in a micro-batch; {:.3f} TFLOP a step; types: {}",
      c.parallel.dp, c.parallel.tp, c.model.hidden_size, c.model.num_hidden_layers,
      c.model.num_attention_heads, c.model.num_key_value_heads, c.model.intermediate_size,
      c.model.vocab_size, c.data.global_batch_size, c.data.sequence_length, c.data.micro_batch_size,
      model::training_flops_per_token(c.model, c.data.sequence_length) *
          static_cast<double>(c.data.global_batch_size * c.data.sequence_length) / 1e12,
      names);
}

void tell_where(Report& report, const comm::Communicator& world) {
  nlohmann::json provenance;
  for (const Provenance& part : {build_provenance(), run_provenance(world.get())}) {
    for (const auto& [key, value] : part) provenance[key] = value;
    report.line(to_text(part));
  }
  report.set("provenance", std::move(provenance));
}

}  // namespace

void run(const Options& options, const comm::Communicator& world) {
  Report report(world.rank() == 0);
  tell_where(report, world);
  const Workload workload(options, world);
  const deck::Config& config = workload.config();
  std::vector<ScalarType> types = options.types;
  if (types.empty()) types = {config.precision.compute};
  comm::ProcessGrid grid = trainer::make_grid(world.get(), config);
  report.line(grid.placement());
  report.line(headline(config, types));
  report.set("deck", deck::canonical_deck(config));

  const Bench bench{options, config, grid, report};
  if (options.wants("gemm")) measure_products(bench, types);
  if (options.wants("kernels")) measure_kernels(bench, types);
  if (options.wants("collectives")) measure_collectives(bench, types);
  if (options.wants("step")) measure_steps(bench, types);
  report.write(options.json);
}

}  // namespace nanotron::apps::bench
