// Which grid for a deck on a machine, how long a step takes, how much a run costs:
// nanotron_plan --ranks 512 --machine input/machines/h100.nml input/llama3_8b.deck

#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/group.hpp"
#include "nanotron/comm/session/mpi_session.hpp"
#include "nanotron/deck/read_deck.hpp"
#include "nanotron/simulation/grid_search.hpp"
#include "nanotron/simulation/published_runs.hpp"
#include "nanotron/simulation/run_size.hpp"
#include "nanotron_plan/command_line.hpp"

namespace nanotron::apps::plan {
namespace {

void write_file(const std::filesystem::path& path, const std::string& text, const char* option) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) {
    fail(ExitCode::system_error,
         {.what = "cannot write " + path.string(), .change = fmt::format("check {} and free space", option)});
  }
}

void write_decks(const std::string& folder, const nanotron::simulation::SearchResult& result,
                 const deck::Machine& machine) {
  std::filesystem::create_directories(folder);
  int number = 0;
  for (const nanotron::simulation::GridCandidate& c : result.best) {
    const auto path = std::filesystem::path(folder) / fmt::format("grid_{:02}.deck", ++number);
    write_file(path,
               fmt::format("! {} ranks of {}: {:.3f} s per step and {:.1f} GB per rank, predicted by nanotron_plan\n",
                           c.prediction.ranks, machine.name, c.prediction.seconds, c.memory / 1e9) +
                   deck::canonical_deck(c.config),
               "--write");
  }
  fmt::print("written: {}\n", (std::filesystem::path(folder) / "grid_01.deck").string());
}

deck::Machine machine_of(const std::string& path) { return deck::read_machine(path, deck::read_deck_file(path)); }

ExitCode validate(const Options& o) {
  std::vector<nanotron::simulation::RunComparison> runs;
  for (std::size_t i = 0; i < o.validate.size(); ++i) {
    const auto of_table = nanotron::simulation::compare_published(o.validate[i], machine_of(o.machines[i]));
    runs.insert(runs.end(), of_table.begin(), of_table.end());
  }
  fmt::print("{}", nanotron::simulation::describe(runs));
  const bool holds = 100.0 * nanotron::simulation::mean_absolute_error(runs) <= o.max_error;
  fmt::print("{} the bound of {} %\n", holds ? "within" : "above", o.max_error);
  return holds ? ExitCode::ok : ExitCode::data_error;
}

ExitCode size(const Options& o) {
  const deck::Machine machine = machine_of(o.machines.front());
  const nanotron::simulation::RunTarget target{.tokens = o.tokens, .days = o.days};
  const auto runs = nanotron::simulation::size_run(deck::read_deck_file(o.deck), o.deck, o.overrides, machine, target,
                                                   {.best = 1, .examined = 16, .seconds = 15.0});
  fmt::print("{}", nanotron::simulation::describe(runs, target, machine));
  if (!o.csv.empty()) write_file(o.csv, nanotron::simulation::as_csv(runs, machine), "--csv");
  if (!o.write.empty()) write_decks(o.write, {.best = {smallest(runs, target).grid}}, machine);
  return ExitCode::ok;
}

// On one rank.
ExitCode run(const Options& o) {
  if (!o.validate.empty()) return validate(o);
  if (o.tokens > 0.0) return size(o);
  const deck::Machine machine = machine_of(o.machines.front());
  const auto result =
      nanotron::simulation::search_grids(deck::read_deck_file(o.deck), o.deck, o.overrides, o.ranks, machine);
  fmt::print("{}", nanotron::simulation::describe(result, machine));
  if (!o.csv.empty()) write_file(o.csv, nanotron::simulation::as_csv(result, machine), "--csv");
  if (!o.write.empty()) write_decks(o.write, result, machine);
  return ExitCode::ok;
}

}  // namespace

}  // namespace nanotron::apps::plan

int main(int argc, char** argv) {
  using namespace nanotron;
  comm::MpiSession mpi(argc, argv);
  return comm::run_guarded(mpi.world(), [&] {
    const comm::Communicator world = comm::Communicator::duplicate(mpi.world());
    const auto options = apps::plan::parse_command_line(argc, argv, world.rank() == 0);
    if (!options || world.rank() != 0) return static_cast<int>(ExitCode::ok);
    return static_cast<int>(apps::plan::run(*options));
  });
}
