// A build for GPUs: a rank's GPU, and the transport, channels and messages of its groups.

#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <set>
#include <string>
#include <vector>

#include "comm/transport/device_transport.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/gpu_api.hpp"
#include "nanotron/base/process.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/comm/transport/nccl_api.hpp"
#include "nanotron/comm/transport/registered_memory.hpp"
#include "nccl_communicator.hpp"

namespace nanotron::comm {
namespace {

// Of each rank of a node, in their order, what tells its GPU from others.
std::vector<std::string> gpus_of_node(const Communicator& node) {
  const std::string own = detail::gpu_identity();
  const int length = static_cast<int>(own.size());
  std::vector<char> all(static_cast<std::size_t>(length * node.size()));
  NANOTRON_CHECK_MPI(MPI_Allgather(own.data(), length, MPI_CHAR, all.data(), length, MPI_CHAR, node.get()));
  std::vector<std::string> gpus;
  for (int r = 0; r < node.size(); ++r) gpus.emplace_back(all.data() + r * length, length);
  return gpus;
}

int different_gpus(const std::vector<std::string>& gpus) {
  return static_cast<int>(std::set<std::string>(gpus.begin(), gpus.end()).size());
}

}  // namespace

bool ranks_share_gpus(const Communicator& world) {
  const Communicator node = world.split_by_node();
  int shares = different_gpus(gpus_of_node(node)) < node.size() ? 1 : 0;
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &shares, 1, MPI_INT, MPI_MAX, world.get()));
  return shares != 0;
}

Transport choose_transport(deck::Backend backend, const Communicator& world) {
  if (backend == deck::Backend::mpi) return Transport::staged_mpi;
  if (!ranks_share_gpus(world) || detail::library_shares_gpus()) return Transport::nccl;
  const Communicator node = world.split_by_node();
  const int gpus = different_gpus(gpus_of_node(node));
  int others_do_not = gpus < node.size() ? 0 : 1;
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &others_do_not, 1, MPI_INT, MPI_MAX, world.get()));
  collectively(world.get(), [&] {
    if (gpus == node.size()) return;
    fail(others_do_not != 0 ? ExitCode::system_error : ExitCode::deck_error,
         {.what = "ranks share a GPU, which " NANOTRON_NCCL_NAME " does not support",
          .expected = "a GPU for each rank of a host",
          .found = fmt::format("{} ranks and {} GPU{} that they see", node.size(), gpus, gpus == 1 ? "" : "s"),
          .where = fmt::format("host {}", host_name()),
          .change = others_do_not != 0 ? "exclude this host: other hosts have a GPU for each rank (" NANOTRON_GPU_LIST
                                         " lists them)"
                                       : "start one rank per GPU (--ntasks-per-node, --gpus-per-node), or set "
                                         "parallel%backend = 'mpi', which goes through host memory"});
  });
  return Transport::nccl;
}

void want_repeatable_sums() { detail::set_variables_of_repeatable_sums(); }

int gpu_of_rank(const Communicator& world) {
  detail::prepare_environment();  // where there is no MpiSession
  const int rank = world.split_by_node().rank();
  int devices = 0;
  collectively(world.get(), [&] {
    const gpuError_t status = gpuGetDeviceCount(&devices);
    if (status == gpuSuccess && devices > 0) return;
    fail(ExitCode::system_error,
         {.what = "no GPU for this rank",
          .expected = "a GPU: this is a build for GPUs",
          .found = status == gpuSuccess ? "none" : gpuGetErrorString(status),
          .where = fmt::format("rank {} on host {}", world.rank(), host_name()),
          .change = "start it on nodes with GPUs (" NANOTRON_GPU_LIST
                    " lists them), and let the job see them (--gpus-per-node, " NANOTRON_VISIBLE_GPUS
                    "); --check and --plan need none"});
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
  if (transport == Transport::nccl) {
    require_launch_order();
    return make_nccl_messages(communicator, blocks);
  }
  return make_staged_messages(make_mpi_messages(communicator));
}

Transport transport_of_device() { return Transport::nccl; }

void copy_on_device(const void* from, void* to, std::size_t bytes, const Stream& stream) {
  NANOTRON_CHECK_GPU(gpuMemcpyAsync(to, from, bytes, gpuMemcpyDeviceToDevice, stream.get()));
}

std::string device_transport_error() {
  const ncclResult_t error = NcclCommunicators::of_process().first_error();
  return error == ncclSuccess ? "" : fmt::format(NANOTRON_NCCL_NAME ": {}", ncclGetErrorString(error));
}

void abort_device_transports() { NcclCommunicators::of_process().abort_all(); }

std::uint64_t device_transport_bytes() { return NcclCommunicators::of_process().bytes(); }

}  // namespace detail

RegisteredMemory::RegisteredMemory(ProcessGrid& grid, std::size_t bytes, deck::MemoryRegistration how) : grid_(grid) {
  void* memory = nullptr;
  const ncclResult_t status = allocate_memory(&memory, bytes);
  if (status != ncclSuccess) {
    fail(ExitCode::system_error, {.what = "NCCL cannot allocate the memory of the run",
                                  .expected = fmt::format("{} MiB on this rank", bytes >> 20),
                                  .found = ncclGetErrorString(status),
                                  .where = "parallel%register_memory",
                                  .change = "register_memory = 'none', or a run that takes less memory"});
  }
  bytes_ = {static_cast<std::byte*>(memory), bytes};
  grid_.register_memory({bytes_, how});
}

RegisteredMemory::~RegisteredMemory() {
  if (std::uncaught_exceptions() > 0) return;
  static_cast<void>(gpuDeviceSynchronize());  // free_memory does not wait
  grid_.register_memory({});
  free_memory(bytes_.data());
}

}  // namespace nanotron::comm
