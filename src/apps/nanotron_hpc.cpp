// The training program: srun nanotron_hpc input.deck

#include <fmt/core.h>

#include "nanotron/base/process.hpp"
#include "nanotron/base/timer.hpp"
#include "nanotron/comm/message_nodes.hpp"
#include "nanotron/comm/session/mpi_session.hpp"
#include "nanotron/model/architectures.hpp"
#include "nanotron/simulation/step_prediction.hpp"
#include "nanotron/tensor/kokkos_session.hpp"
#include "nanotron/trainer/checkpoint/checkpoint_times.hpp"
#include "nanotron/trainer/data/run_data.hpp"
#include "nanotron/trainer/evaluation/evaluation.hpp"
#include "nanotron/trainer/plan/plan.hpp"
#include "nanotron/trainer/plan/start_plan.hpp"
#include "nanotron/trainer/report/pipeline_text.hpp"
#include "nanotron/trainer/start/deck_features.hpp"
#include "nanotron/trainer/start/network_variables.hpp"
#include "nanotron/trainer/start/train.hpp"
#include "nanotron/trainer/state/run_resources.hpp"
#include "nanotron_hpc/command_line.hpp"

int main(int argc, char** argv) {
  using namespace nanotron;
  hold_stop_signals();
  const double start = wall_seconds();
  comm::MpiSession mpi(argc, argv);
  trainer::LastWords last_words;
  const auto program = [&] {
    const comm::Communicator world = comm::Communicator::duplicate(mpi.world());
    const auto line = apps::parse_command_line(argc, argv, world.rank() == 0);
    if (!line) return static_cast<int>(ExitCode::ok);

    const bool trains = line->action == apps::Action::train, runs = trains || line->action == apps::Action::evaluate;
    if (!trains) release_stop_signals();
    const deck::Config config =
        trainer::load_config(world.get(), line->deck, line->overrides,
                             runs ? trainer::GridRanks::of_world : trainer::GridRanks::of_deck, line->ranks);
    if (line->action == apps::Action::check) {
      const std::string data = trainer::describe_data(config, world.get());
      const std::string pipeline = trainer::draw_pipeline(config);
      std::string warnings;
      for (const std::string& text : {trainer::unsaved_text(config.checkpoint), model::unexported_text(config.model)})
        if (!text.empty()) warnings += "warning: " + text + "\n";
      for (const std::string& text : trainer::network_warnings()) warnings += "warning: " + text + "\n";
      if (world.rank() == 0)
        fmt::print("{}{}{}\n{}{}: deck OK\n", trainer::grid_line(config), pipeline, data, warnings, line->deck);
      return static_cast<int>(ExitCode::ok);
    }
    if (line->action == apps::Action::plan) {
      const auto machine = trainer::load_machine(world.get(), line->machine);
      const deck::Config run = comm::with_message_nodes(config, machine);
      std::string plan = trainer::describe_plan(run, machine);
      if (machine) plan += simulation::describe_prediction(run, *machine);
      if (line->ranks > 0) plan += trainer::describe_start(config, machine);
      plan += trainer::describe_blend(config, world.get());
      if (world.rank() == 0) fmt::print("{}", plan);
      return static_cast<int>(ExitCode::ok);
    }
    const KokkosSession kokkos(comm::gpu_of_rank(world));
    if (!trains && !line->choices.empty())
      return static_cast<int>(trainer::evaluate_choices(config, line->choices, line->results, world.get()));
    if (!trains) return static_cast<int>(trainer::evaluate(config, world.get()));
    return static_cast<int>(trainer::train(config, world.get(), line->status, start, last_words));
  };
  return comm::run_guarded(mpi.world(), program, [&](const auto&... words) { last_words.tell(words...); });
}
