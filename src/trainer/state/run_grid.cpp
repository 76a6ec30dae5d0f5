#include "nanotron/trainer/state/run_grid.hpp"

#include <fmt/format.h>

#include "nanotron/trainer/state/training_state.hpp"

namespace nanotron::trainer {

comm::ProcessGrid make_grid(MPI_Comm world, const deck::Config& config) {
  const comm::Communicator all = comm::Communicator::duplicate(world);
  if (computes_bad_steps_again(config)) comm::want_repeatable_sums();
  comm::ProcessGrid grid(all, comm::shape_of(config), comm::choose_transport(config.parallel.backend, all));
  for (comm::Group* const ring : {&grid.pp(), &grid.cp()}) {
    ring->limit_message_blocks(static_cast<int>(config.parallel.message_blocks));
  }
  return grid;
}

std::string grid_line(const deck::Config& config) {
  const comm::GridShape shape = comm::shape_of(config);
  return fmt::format("grid: dp {} x pp {} x cp {} x tp {} = {} rank{}{}\n", shape.dp, shape.pp, shape.cp, shape.tp,
                     shape.size(), shape.size() == 1 ? "" : "s",
                     shape.ep > 1 ? fmt::format(", ep {} inside dp x cp", shape.ep) : "");
}

}  // namespace nanotron::trainer
