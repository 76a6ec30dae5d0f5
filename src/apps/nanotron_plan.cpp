// Which grid for a deck on a machine, how long a step takes, how much a run costs:
// nanotron_plan --ranks 512 --machine input/machines/h100.nml input/llama3_8b.deck

#include "nanotron/comm/group.hpp"
#include "nanotron/comm/session/mpi_session.hpp"
#include "nanotron_plan/command_line.hpp"
#include "nanotron_plan/plan.hpp"

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
