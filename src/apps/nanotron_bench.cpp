// Benchmark of a deck on this machine: mpirun -np 2 nanotron_bench --deck input/llama_30m.deck

#include <fmt/format.h>

#include <algorithm>

#include "nanotron/base/provenance.hpp"
#include "nanotron/comm/group.hpp"
#include "nanotron/comm/session/mpi_session.hpp"
#include "nanotron/model/cost.hpp"
#include "nanotron/tensor/kokkos_session.hpp"
#include "nanotron/trainer/start/measured_keys.hpp"
#include "nanotron/trainer/state/run_resources.hpp"
#include "nanotron_bench/benches.hpp"
#include "nanotron_bench/command_line.hpp"
#include "nanotron_bench/host_load.hpp"
#include "nanotron_bench/workload.hpp"

namespace nanotron::apps::bench {
namespace {

std::string headline(const deck::Config& c, const std::vector<ScalarType>& types) {
  std::string names;
  for (const ScalarType type : types) names += fmt::format("{}{}", names.empty() ? "" : ", ", name_of(type));
  return fmt::format(
      "grid dp {} x pp {} x cp {} x tp {}, ep {}; hidden {}, {} layers, {} heads ({} key-value), ffn {}, vocabulary "
      "{}\n"
      "{} sequences of {} tokens per step, {} per micro-batch; {:.3f} TFLOP per step; types: {}\n"
      "keys that are not at their defaults:\n{}",
      c.parallel.dp, c.parallel.pp, c.parallel.cp, c.parallel.tp, c.parallel.ep, c.model.hidden_size,
      c.model.num_hidden_layers, c.model.num_attention_heads, c.model.num_key_value_heads, c.model.intermediate_size,
      c.model.vocab_size, c.data.global_batch_size, c.data.sequence_length, c.data.micro_batch_size,
      model::training_flops_per_token(c) * static_cast<double>(c.data.global_batch_size * c.data.sequence_length) /
          1e12,
      names, deck::changed_keys(c));
}

void tell_where(Report& report, const comm::Communicator& world) {
  nlohmann::json provenance;
  for (const Provenance& part :
       {build_provenance(), run_provenance(comm::texts_at_root(world.get(), place_of_process()))}) {
    for (const auto& [key, value] : part) provenance[key] = value;
    report.line(to_text(part));
  }
  report.set("provenance", std::move(provenance));
}

// Runs one part and reports how much other processes used the host of rank 0 meanwhile.
template <class Part>
void run_part(const char* name, const comm::Communicator& node, Report& report, Part part) {
  const HostLoad load(node.get());
  part();
  const HostLoad::Others others = load.others();
  if (others.of == 0) return;
  report.line(
      fmt::format("  meanwhile on this host: {:.2f} of {} cores busy with other processes, {:.2f} taken "
                  "by the hypervisor",
                  others.cores, others.of, others.stolen));
  report.set(fmt::format("{}_host_load", name),
             {{"others", others.cores}, {"stolen", others.stolen}, {"cores", others.of}});
}

// Runs and reports the measurements of the options. Collective over world.
void run(const Options& options, const comm::Communicator& world) {
  Report report(world.rank() == 0);
  tell_where(report, world);
  const Workload workload(options, world);
  deck::Config config = workload.config();
  std::vector<ScalarType> types = options.types;
  if (types.empty()) types = {config.precision.compute};
  comm::ProcessGrid grid = trainer::make_grid(world.get(), config);
  Log log(world.rank() == 0, world.rank());
  trainer::choose_bucket(config, grid, log);
  report.line(grid.placement());
  report.line(headline(config, types));
  report.set("deck", deck::canonical_deck(config));

  const Bench bench{options, config, grid, report};
  if (!options.gemm_algorithms.empty()) return write_gemm_algorithms(bench, types);
  const comm::Communicator node = world.split_by_node();
  if (!options.machine.empty()) return write_machine(bench, world, types.front());
  const auto measure = [&](const char* name, auto part) {
    if (options.wants(name)) run_part(name, node, report, [&] { part(bench, types); });
  };
  measure("gemm", measure_gemm);
  measure("kernels", measure_kernels);
  measure("collectives", measure_collectives);
  measure("overlap", measure_overlap);
  measure("pipeline", measure_pipelines);
  measure("data", measure_data);
  measure("step", measure_steps);
  report.write(options.json);
}

}  // namespace

}  // namespace nanotron::apps::bench

int main(int argc, char** argv) {
  using namespace nanotron;
  comm::MpiSession mpi(argc, argv);
  return comm::run_guarded(mpi.world(), [&] {
    const comm::Communicator world = comm::Communicator::duplicate(mpi.world());
    const auto options = apps::bench::parse_command_line(argc, argv, world.rank() == 0);
    if (options) {
      const KokkosSession kokkos(comm::gpu_of_rank(world));
      apps::bench::run(*options, world);
    }
    return static_cast<int>(ExitCode::ok);
  });
}
