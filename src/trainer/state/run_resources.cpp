#include "nanotron/trainer/state/run_resources.hpp"

#include <fmt/format.h>

#include <array>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/trainer/state/training_state.hpp"

namespace nanotron::trainer {

comm::ProcessGrid make_grid(MPI_Comm world, const deck::Config& config) {
  const comm::Communicator all = comm::Communicator::duplicate(world);
  if (computes_bad_steps_again(config)) comm::want_repeatable_sums();
  comm::ProcessGrid grid(all, comm::shape_of(config), comm::choose_transport(config.parallel.backend, all));
  for (comm::Group* const ring : {&grid.pp(), &grid.cp(), &grid.cp_ring()}) {
    ring->limit_message_blocks(static_cast<int>(config.parallel.message_blocks));
  }
  return grid;
}

std::string grid_line(const deck::Config& config) {
  const comm::GridShape shape = comm::shape_of(config);
  return fmt::format("grid: dp {} x pp {} x cp {} x tp {} = {} rank{}{}\n", shape.dp, shape.pp, shape.cp, shape.tp,
                     shape.size(), shape.size() == 1 ? "" : "s",
                     shape.ep * shape.tp_in_ep() > 1
                         ? fmt::format(", ep {} inside dp x cp{}", shape.ep, shape.ep_spans_tp ? " x tp" : "")
                         : "");
}

namespace {

// Or parts of these are. Stages of a pipeline may differ: their groups have no windows.
std::array<comm::Group*, 3> groups_with_windows(comm::ProcessGrid& grid) {
  return {&grid.tp(), &grid.cp(), &grid.data_parallel()};
}

// Operands of a collective lie at one offset of symmetric memory on all of its ranks.
void require_equal_offsets(comm::ProcessGrid& grid, const MemoryPlan& plan) {
  const auto offsets = static_cast<std::int64_t>(plan.offsets);
  std::int64_t differing = 0;
  for (comm::Group* const group : groups_with_windows(grid)) {
    if (comm::min(*group, offsets) != comm::max(*group, offsets)) ++differing;
  }
  if (comm::max(grid.world(), differing) == 0) return;
  const auto mib = static_cast<std::int64_t>(plan.total() >> 20);
  const std::int64_t least = comm::min(grid.world(), mib), most = comm::max(grid.world(), mib);
  fail(ExitCode::deck_error, {.what = "the ranks of a group lay their memory out differently, so it is not symmetric",
                              .expected = "tp and cp that divide heads, widths, vocabulary and sequence evenly",
                              .found = fmt::format("plans of {} to {} MiB", least, most),
                              .where = "parallel%register_memory = 'symmetric'",
                              .change = "such degrees, or register_memory = 'local'"});
}

std::unique_ptr<comm::RegisteredMemory> registered(deck::MemoryRegistration how, comm::ProcessGrid& grid,
                                                   const MemoryPlan& plan) {
  if (how == deck::MemoryRegistration::none) return nullptr;
  auto bytes = static_cast<std::int64_t>(Arena::bytes_of(plan));
  if (how == deck::MemoryRegistration::symmetric) {
    require_equal_offsets(grid, plan);
    for (comm::Group* const group : groups_with_windows(grid)) bytes = comm::max(*group, bytes);
  }
  return std::make_unique<comm::RegisteredMemory>(grid, static_cast<std::size_t>(bytes), how);
}

}  // namespace

RunMemory::RunMemory(const deck::Config& config, comm::ProcessGrid& grid, const MemoryPlan& plan)
    : grid_(grid),
      how_(config.parallel.register_memory),
      registered_(registered(how_, grid, plan)),
      arena_(registered_ ? Arena(plan, registered_->bytes()) : Arena(plan)) {}

Arena& RunMemory::arena_of(const MemoryPlan& plan) {
  if (how_ == deck::MemoryRegistration::symmetric) require_equal_offsets(grid_, plan);
  return stage_.emplace(plan, arena_);
}

}  // namespace nanotron::trainer
