#include "rank_memory.hpp"

#include <fmt/format.h>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/transport/nccl_memory.hpp"

namespace nanotron::trainer {
namespace {

double in_mib(std::size_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0); }

}  // namespace

RankMemory of_largest(RankMemory mine, std::size_t bytes, comm::Group& world) {
  struct {
    double bytes;
    int rank;
  } largest{static_cast<double>(bytes), world.rank()};
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &largest, 1, MPI_DOUBLE_INT, MPI_MAXLOC, world.mpi()));
  mine.rank = largest.rank;
  NANOTRON_CHECK_MPI(MPI_Bcast(&mine, sizeof mine, MPI_BYTE, largest.rank, world.mpi()));
  return mine;
}

std::size_t staging_bytes(comm::ProcessGrid& grid) {
  std::size_t bytes = 0;
  grid.for_each_group([&](const comm::Group& group, comm::GroupKind) { bytes += group.staging_bytes(); });
  return bytes;
}

std::string plan_text(const RankMemory& m) {
  return fmt::format(
      "memory of rank {}, the largest, besides {:.0f} MiB of program and libraries, {:.0f} MiB of staging "
      "buffers and up to {:.0f} MiB while a checkpoint is written:\n{}",
      m.rank, in_mib(m.program), in_mib(m.staging), in_mib(m.checkpoint), m.plan.table());
}

std::string peak_text(const RankMemory& m) {
  return fmt::format(
      "peak resident memory: {:.0f} MiB on rank {}, the largest, planned {:.0f} MiB and up to {:.0f} MiB "
      "for checkpoints",
      in_mib(m.peak), m.rank, in_mib(m.planned()), in_mib(m.checkpoint));
}

std::string nccl_text(comm::Group& world) {
  const std::int64_t bytes = comm::max(world, static_cast<std::int64_t>(comm::nccl_bytes_taken()));
  return bytes == 0 ? "" : fmt::format("NCCL's buffers: {} MiB of GPU memory on the rank with most", bytes >> 20);
}

}  // namespace nanotron::trainer
