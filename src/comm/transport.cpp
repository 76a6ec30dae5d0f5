// Which GPU a rank uses, and which transport its groups.

#include <set>
#include <string>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/group.hpp"

#ifdef NANOTRON_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace nanotron::comm {

#ifdef NANOTRON_WITH_CUDA

namespace {

// True when no two ranks of a node use the same GPU (told apart by UUID: MIG slices differ, too).
bool gpus_are_distinct(const Communicator& world) {
  int device = 0;
  NANOTRON_CHECK_CUDA(cudaGetDevice(&device));
  cudaDeviceProp properties{};
  NANOTRON_CHECK_CUDA(cudaGetDeviceProperties(&properties, device));
  const Communicator node = world.split_by_node();
  constexpr int length = sizeof(properties.uuid.bytes);
  std::vector<char> all(static_cast<std::size_t>(length * node.size()));
  NANOTRON_CHECK_MPI(MPI_Allgather(properties.uuid.bytes, length, MPI_CHAR, all.data(), length, MPI_CHAR,
                                   node.get()));
  std::set<std::string> seen;
  for (int r = 0; r < node.size(); ++r) seen.emplace(all.data() + r * length, length);
  int distinct = seen.size() == static_cast<std::size_t>(node.size()) ? 1 : 0;
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &distinct, 1, MPI_INT, MPI_MIN, world.get()));
  return distinct != 0;
}

}  // namespace

Transport choose_transport(deck::Backend backend, const Communicator& world) {
  if (backend == deck::Backend::mpi) return Transport::staged_mpi;
  if (gpus_are_distinct(world)) return Transport::nccl;
  if (backend == deck::Backend::automatic) return Transport::staged_mpi;
  fail(ExitCode::deck_error, {.what = "NCCL wants a GPU for every rank",
                              .expected = "as many GPUs on a node as ranks",
                              .found = "two ranks on one GPU",
                              .where = "parallel%backend = 'nccl'",
                              .change = "start one rank per GPU, or set backend = 'auto'"});
}

int gpu_of_rank(const Communicator& world) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return -1;
  return world.split_by_node().rank() % devices;
}

#else

Transport choose_transport(deck::Backend backend, const Communicator&) {
  if (backend == deck::Backend::nccl) {
    fail(ExitCode::deck_error, {.what = "this program was built without CUDA, so it has no NCCL",
                                .expected = "'auto' or 'mpi'",
                                .found = "'nccl'",
                                .where = "parallel%backend",
                                .change = "set backend = 'auto', or build the cuda preset"});
  }
  return Transport::mpi;
}

int gpu_of_rank(const Communicator&) { return -1; }

#endif

}  // namespace nanotron::comm
