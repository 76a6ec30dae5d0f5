// The functions of NCCL that the program calls, between the emulated GPUs of processes on one node.
//
// A communicator is a segment of shared memory with a row per rank. An operation is work of a stream: it publishes its
// data in a file of shared memory and is done when its peers' are there. NCCL's rules, each a fault where it is broken:
//
//   connections are made at their first use (nccl_connections.hpp)
//   operations of a communicator run in the order in which they were issued, whatever their streams
//   operations of a process begin in the order in which they were issued, whatever their communicators: with
//     NCCL_LAUNCH_ORDER_IMPLICIT=1 each launch waits for the beginning of the one before (src/enqueue.cc of 2.30.7,
//     ncclLaunchPrepare and ncclLaunchFinish: launchOrder). Not so RCCL: a launch waits for its own streams alone
//     (src/enqueue.cc of 2.21.5, ncclLaunchPrepare)
//   all ranks issue the same collective with the same count; a send and its receive have the same size
//   ranks that share two communicators launch their collectives in one order
//   communicators are made and destroyed by all their ranks
//   memory is registered while it exists, and windows as nccl_memory.cpp says
//   an operation that a peer never issues is a deadlock, named by operation, communicator and rank
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>
#include <vector>

#include "emulation/device_memory.hpp"
#include "emulation/nccl_connections.hpp"
#include "emulation/nccl_parts.hpp"

using namespace nanotron::emulation;

namespace {

using Parts = std::vector<std::shared_ptr<Part>>;

int groups_open = 0;
std::map<std::pair<ncclComm*, gpuStream_t>, Parts> grouped;

// One operation: parts that run together.
void issue(ncclComm* comm, gpuStream_t handle, Parts parts) {
  Scheduler& scheduler = Scheduler::instance();
  Stream& stream = handle == nullptr ? scheduler.default_stream() : *reinterpret_cast<Stream*>(handle);
  static std::uint64_t launched = 0, begun = 0;
  const std::uint64_t number = comm->issued++, place = launched++;
  auto left = std::make_shared<Parts>(std::move(parts));
  scheduler.launch(stream, {[comm, left] { return left->empty() ? "NCCL" : left->front()->describe(*comm); },
                            [comm, left, number, place, has_begun = false]() mutable {
                              if (comm->done != number) return Progress::waits;
                              if (is_nccl && !has_begun && place != begun) return Progress::waits;
                              if (!std::exchange(has_begun, true)) ++begun;
                              const DeviceAccess access;
                              std::erase_if(*left,
                                            [&](const auto& part) { return part->run(*comm) == Progress::done; });
                              if (!left->empty()) return Progress::waits;
                              ++comm->done;
                              return Progress::done;
                            }});
}

ncclResult_t add(ncclComm* comm, gpuStream_t stream, std::shared_ptr<Part> part) {
  if (groups_open > 0) {
    grouped[{comm, stream}].push_back(std::move(part));
  } else {
    connect();
    issue(comm, stream, {std::move(part)});
  }
  return ncclSuccess;
}

ncclResult_t collective(Call call, const void* send, void* recv, ncclComm* comm, gpuStream_t stream) {
  call.offset = offset_in_window(*comm, call.kind == Kind::reduce_scatter ? send : recv);
  need_collective(*comm, call);
  return add(comm, stream, make_collective(call, send, recv, *comm));
}

}  // namespace

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static int made = 0;
  *id = {};
  // With the time: a program that ended by a fault leaves its segments, and process numbers are reused.
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const std::string name = fmt::format("/nanotron-emulated-{}-{:x}-{}", getpid(), now, made++);
  std::copy(name.begin(), name.end(), id->internal);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* made, int size, ncclUniqueId id, int rank) {
  auto comm = std::make_unique<ncclComm>();
  comm->name = id.internal;
  comm->size = size;
  comm->rank = rank;
  comm->memory = std::make_unique<Shared>(comm->name, sizeof(Segment));
  comm->own().world_rank.store(world_rank());
  comm->own().has_joined.store(true);
  Scheduler::instance().run_until(
      [&] {
        for (int r = 0; r < size; ++r) {
          if (!comm->row(r).has_joined.load()) return false;
        }
        return true;
      },
      fmt::format("ncclCommInitRank of rank {} of the {} of communicator {}", rank, size, comm->name));
  follow_launches(*comm);
  follow_communicator(*comm);
  *made = comm.release();
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (config->maxCTAs != NCCL_CONFIG_UNDEF_INT && config->maxCTAs < 1) fault("ncclCommInitRankConfig: no thread block");
  if (config->CTAPolicy != NCCL_CONFIG_UNDEF_INT &&
      (config->CTAPolicy < NCCL_CTA_POLICY_DEFAULT || config->CTAPolicy > NCCL_CTA_POLICY_ZERO)) {
    fault("ncclCommInitRankConfig: no such CTAPolicy");
  }
  const ncclResult_t status = ncclCommInitRank(made, size, id, rank);
  (*made)->max_blocks = config->maxCTAs == NCCL_CONFIG_UNDEF_INT ? 0 : config->maxCTAs;
  return status;
}

const char* ncclGetErrorString(ncclResult_t status) { return status == ncclSuccess ? "no error" : "an error"; }

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  forget_launches(*comm);
  forget_communicator(*comm);
  require_no_window(*comm);
  forget_registrations(*comm);
  comm->own().has_left.store(true);
  const auto is_gone = [&](int r) { return comm->row(r).has_left.load(); };
  Scheduler::instance().run_until(
      [&] {
        for (int r = 0; r < comm->size; ++r) {
          if (!is_gone(r)) return false;
        }
        return true;
      },
      fmt::format("ncclCommDestroy of communicator {}", comm->name));
  if (comm->segment().left.fetch_add(1) + 1 == comm->size) shm_unlink(comm->name.c_str());
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  forget_launches(*comm);
  forget_communicator(*comm);
  forget_registrations(*comm);
  shm_unlink(comm->name.c_str());
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++groups_open;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--groups_open > 0) return ncclSuccess;
  connect();
  for (auto& [where, parts] : std::exchange(grouped, {})) issue(where.first, where.second, std::move(parts));
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* send, void* recv, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           gpuStream_t stream) {
  return collective({.kind = Kind::all_reduce, .type = type, .op = op, .count = n}, send, recv, comm, stream);
}
ncclResult_t ncclAllGather(const void* send, void* recv, size_t n, ncclDataType_t type, ncclComm_t comm,
                           gpuStream_t stream) {
  return collective({.kind = Kind::all_gather, .type = type, .count = n}, send, recv, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t n, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, gpuStream_t stream) {
  return collective({.kind = Kind::reduce_scatter, .type = type, .op = op, .count = n}, send, recv, comm, stream);
}
ncclResult_t ncclBroadcast(const void* send, void* recv, size_t n, ncclDataType_t type, int root, ncclComm_t comm,
                           gpuStream_t stream) {
  return collective({.kind = Kind::broadcast, .type = type, .count = n, .root = root}, send, recv, comm, stream);
}
ncclResult_t ncclSend(const void* data, size_t n, ncclDataType_t type, int to, ncclComm_t comm, gpuStream_t stream) {
  need_send(*comm, to);
  return add(comm, stream, make_send(data, n * size_of(type), to));
}
ncclResult_t ncclRecv(void* data, size_t n, ncclDataType_t type, int from, ncclComm_t comm, gpuStream_t stream) {
  need_receive(*comm, from);
  return add(comm, stream, make_receive(data, n * size_of(type), from));
}

}  // extern "C"
