// Generates text from a checkpoint:
// mpirun -np 2 nanotron_generate --checkpoint run/checkpoints --prompt "int main("

#include "nanotron/comm/group.hpp"
#include "nanotron/comm/session/mpi_session.hpp"
#include "nanotron/tensor/kokkos_session.hpp"
#include "nanotron_generate/command_line.hpp"
#include "nanotron_generate/generate.hpp"

int main(int argc, char** argv) {
  using namespace nanotron;
  comm::MpiSession mpi(argc, argv);
  return comm::run_guarded(mpi.world(), [&] {
    const comm::Communicator world = comm::Communicator::duplicate(mpi.world());
    const auto options = apps::parse_generate_options(argc, argv, world.rank() == 0);
    if (options) {
      const KokkosSession kokkos(comm::gpu_of_rank(world));
      apps::generate(*options, world);
    }
    return static_cast<int>(ExitCode::ok);
  });
}
