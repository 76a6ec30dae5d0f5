// Benchmark of a deck on this machine: mpirun -np 2 nanotron_bench --deck input/llama_30m.deck

#include "nanotron/comm/group.hpp"
#include "nanotron/comm/session/mpi_session.hpp"
#include "nanotron/tensor/kokkos_session.hpp"
#include "nanotron_bench/benchmark.hpp"
#include "nanotron_bench/command_line.hpp"

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
