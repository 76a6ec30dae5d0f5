// CUDA build: a rank's GPU, and the transport, channels and messages of its groups.

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "comm/transport/device_transport.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/process.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/comm/transport/registered_memory.hpp"
#include "nccl_communicator.hpp"

namespace nanotron::comm {
namespace {

// Of each rank of a node, in their order, the UUID of its GPU: MIG slices have their own.
std::vector<std::string> gpus_of_node(const Communicator& node) {
  int device = 0;
  NANOTRON_CHECK_CUDA(cudaGetDevice(&device));
  cudaDeviceProp properties{};
  NANOTRON_CHECK_CUDA(cudaGetDeviceProperties(&properties, device));
  constexpr int length = sizeof(properties.uuid.bytes);
  std::vector<char> all(static_cast<std::size_t>(length * node.size()));
  NANOTRON_CHECK_MPI(MPI_Allgather(properties.uuid.bytes, length, MPI_CHAR, all.data(), length, MPI_CHAR, node.get()));
  std::vector<std::string> gpus;
  for (int r = 0; r < node.size(); ++r) gpus.emplace_back(all.data() + r * length, length);
  return gpus;
}

int different_gpus(const std::vector<std::string>& gpus) {
  return static_cast<int>(std::set<std::string>(gpus.begin(), gpus.end()).size());
}

bool sharing_is_asked_of_nccl() {
  const char* value = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return value != nullptr && std::strtoll(value, nullptr, 0) != 0;
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
  if (!ranks_share_gpus(world) || sharing_is_asked_of_nccl()) return Transport::nccl;
  const Communicator node = world.split_by_node();
  const int gpus = different_gpus(gpus_of_node(node));
  int others_do_not = gpus < node.size() ? 0 : 1;
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &others_do_not, 1, MPI_INT, MPI_MAX, world.get()));
  collectively(world.get(), [&] {
    if (gpus == node.size()) return;
    fail(others_do_not != 0 ? ExitCode::system_error : ExitCode::deck_error,
         {.what = "ranks share a GPU, which NCCL does not support",
          .expected = "a GPU for each rank of a host",
          .found = fmt::format("{} ranks and {} GPU{} that they see", node.size(), gpus, gpus == 1 ? "" : "s"),
          .where = fmt::format("host {}", host_name()),
          .change = others_do_not != 0
                        ? "exclude this host: other hosts have a GPU for each rank (nvidia-smi lists them)"
                        : "start one rank per GPU (--ntasks-per-node, --gpus-per-node), or set "
                          "parallel%backend = 'mpi', which goes through host memory"});
  });
  return Transport::nccl;
}

void want_repeatable_sums() { setenv("NCCL_NVLS_ENABLE", "0", 0); }

int gpu_of_rank(const Communicator& world) {
  detail::prepare_environment();  // where there is no MpiSession
  const int rank = world.split_by_node().rank();
  int devices = 0;
  collectively(world.get(), [&] {
    const cudaError_t status = cudaGetDeviceCount(&devices);
    if (status == cudaSuccess && devices > 0) return;
    fail(ExitCode::system_error,
         {.what = "no GPU for this rank",
          .expected = "a GPU: this is a build for GPUs",
          .found = status == cudaSuccess ? "none" : cudaGetErrorString(status),
          .where = fmt::format("rank {} on host {}", world.rank(), host_name()),
          .change = "start it on nodes with GPUs (nvidia-smi lists them), and let the job see them (--gpus-per-node, "
                    "CUDA_VISIBLE_DEVICES); --check and --plan need none"});
  });
  return rank % devices;
}

namespace detail {
namespace {

// Clients of CUDA's multi-process service share its connections: more for each may leave none for the last.
bool has_process_service() {
  return std::getenv("CUDA_MPS_PIPE_DIRECTORY") != nullptr || ::access("/tmp/nvidia-mps", F_OK) == 0;
}

// Before CUDA 12.3 a launch of NCCL waits for the end of the one before (src/enqueue.cc of 2.30, getImplicitOrder): a
// send for the receive that was posted before it.
void require_launch_order() {
  int driver = 0;
  NANOTRON_CHECK_CUDA(cudaDriverGetVersion(&driver));
  const char* const order = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  if (driver >= 12030 || (order != nullptr && std::string_view(order) == "0")) return;
  fail(ExitCode::system_error,
       {.what = "messages between GPUs need a newer driver",
        .expected = "a driver for CUDA 12.3 or newer",
        .found = fmt::format("CUDA {}.{}", driver / 1000, driver % 1000 / 10),
        .where = fmt::format("host {}", host_name()),
        .change = "use hosts with a newer driver, pp = 1 and no ring, or parallel%backend = 'mpi', which goes through "
                  "the memory of the host"});
}

}  // namespace

void prepare_environment() {
  // A module that is loaded by its kernel's first launch may wait for the device, where a receive may be waiting for
  // what that kernel computes.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  // A stream that waits holds up those that share its hardware queue: a rank of a ring has more than the usual 8.
  if (!has_process_service()) setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

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
  NANOTRON_CHECK_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream.get()));
}

std::string device_transport_error() {
  const ncclResult_t error = NcclCommunicators::of_process().first_error();
  return error == ncclSuccess ? "" : fmt::format("NCCL: {}", ncclGetErrorString(error));
}

void abort_device_transports() { NcclCommunicators::of_process().abort_all(); }

std::uint64_t device_transport_bytes() { return NcclCommunicators::of_process().bytes(); }

}  // namespace detail

RegisteredMemory::RegisteredMemory(ProcessGrid& grid, std::size_t bytes, deck::MemoryRegistration how) : grid_(grid) {
  void* memory = nullptr;
  const ncclResult_t status = ncclMemAlloc(&memory, bytes);
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
  cudaDeviceSynchronize();  // ncclMemFree does not wait
  grid_.register_memory({});
  ncclMemFree(bytes_.data());
}

}  // namespace nanotron::comm
