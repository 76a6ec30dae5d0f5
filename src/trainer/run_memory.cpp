#include "nanotron/trainer/run_memory.hpp"

#include <fmt/format.h>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/collectives.hpp"

namespace nanotron::trainer {
namespace {

// Operands of a collective lie at one offset of symmetric memory on all of its ranks. Stages of a pipeline may differ:
// their groups have none.
void require_equal_offsets(comm::ProcessGrid& grid, const MemoryPlan& plan) {
  const auto offsets = static_cast<std::int64_t>(plan.offsets);
  std::int64_t differing = 0;
  for (comm::Group* const group : {&grid.tp(), &grid.cp(), &grid.data_parallel()}) {
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
  if (how == deck::MemoryRegistration::symmetric) require_equal_offsets(grid, plan);
  return std::make_unique<comm::RegisteredMemory>(grid, Arena::bytes_of(plan), how);
}

}  // namespace

RunMemory::RunMemory(const deck::Config& config, comm::ProcessGrid& grid, const MemoryPlan& plan)
    : grid_(grid),
      how_(config.parallel.register_memory),
      registered_(registered(how_, grid, plan)),
      arena_(registered_ ? Arena(plan, registered_->bytes()) : Arena(plan)) {}

Arena& RunMemory::arena_of(const MemoryPlan& plan) {
  if (how_ == deck::MemoryRegistration::symmetric) require_equal_offsets(grid_, plan);
  return stage_.emplace(plan, arena_.memory());
}

}  // namespace nanotron::trainer
