// CUDA build: a rank's GPU, and the transport, channels and messages of its groups.

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "comm/cuda/nccl_communicator.hpp"
#include "comm/device_transport.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/host.hpp"
#include "nanotron/comm/agreement.hpp"

namespace nanotron::comm {
namespace {

// True when no two ranks of a node use the same GPU. Compares UUIDs: MIG slices have their own.
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

void want_repeatable_sums() { setenv("NCCL_NVLS_ENABLE", "0", 0); }

int gpu_of_rank(const Communicator& world) {
  // Before the first CUDA call. A module that is loaded by its kernel's first launch may wait for the device, where a
  // receive may be waiting for what that kernel computes.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  const int rank = world.split_by_node().rank();
  int devices = 0;
  collectively(world.get(), [&] {
    const cudaError_t status = cudaGetDeviceCount(&devices);
    if (status == cudaSuccess && devices > 0) return;
    fail(ExitCode::system_error,
         {.what = "there is no GPU for this rank",
          .expected = "a GPU: this is a build for GPUs",
          .found = status == cudaSuccess ? "none" : cudaGetErrorString(status),
          .where = fmt::format("rank {} on host {}", world.rank(), host_name()),
          .change = "start it on nodes with GPUs (nvidia-smi lists them), and let the job see them (--gpus-per-node, "
                    "CUDA_VISIBLE_DEVICES); --check and --plan need none"});
  });
  return rank % devices;
}

namespace detail {

std::unique_ptr<Channel> make_device_channel(const Communicator& communicator, Transport transport,
                                             const CollectiveSetup& setup,
                                             const std::function<std::unique_ptr<Channel>()>& make_host) {
  if (transport == Transport::nccl && setup.sums == Sums::any_order) {
    return make_nccl_channel(communicator, setup.engine);
  }
  return make_staged_channel(communicator, make_host());
}

std::unique_ptr<Messages> make_device_messages(const Communicator& communicator, Transport transport, int blocks) {
  if (transport == Transport::nccl) return make_nccl_messages(communicator, blocks);
  return make_staged_messages(make_mpi_messages(communicator));
}

Transport transport_of_device() { return Transport::nccl; }

void copy_on_device(const void* from, void* to, std::size_t bytes, const Stream& stream) {
  NANOTRON_CHECK_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream.get()));
}

std::string device_transport_error() {
  const ncclResult_t error = NcclCommunicators::of_process().first_error();
  return error == ncclSuccess ? "" : fmt::format("NCCL: {}", ncclGetErrorString(error));
}

void abort_device_transports() { NcclCommunicators::of_process().abort_all(); }

}  // namespace detail
}  // namespace nanotron::comm
