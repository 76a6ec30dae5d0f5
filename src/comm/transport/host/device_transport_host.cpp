// Build without GPUs: host memory only.

#include <new>

#include "comm/transport/device_transport.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/comm/transport/registered_memory.hpp"

namespace nanotron::comm {

Transport choose_transport(deck::Backend backend, const Communicator&) {
  if (backend == deck::Backend::nccl) {
    fail(ExitCode::deck_error, {.what = "this program was built without GPUs, so it has neither NCCL nor RCCL",
                                .expected = "'auto' or 'mpi'",
                                .found = "'nccl'",
                                .where = "parallel%backend",
                                .change = "set backend = 'auto', or build the preset cuda or hip"});
  }
  return Transport::mpi;
}

bool ranks_share_gpus(const Communicator&) { return false; }

void want_repeatable_sums() {}

int gpu_of_rank(const Communicator&) { return -1; }

namespace detail {

void prepare_environment() {}

std::unique_ptr<Channel> make_device_channel(const Communicator&, Transport transport, const CollectiveSetup&,
                                             const std::function<std::unique_ptr<Channel>()>&) {
  NANOTRON_REQUIRE(false, "transport {} needs a build for GPUs", name_of(transport));
  return nullptr;
}

std::unique_ptr<Messages> make_device_messages(const Communicator&, Transport transport, int) {
  NANOTRON_REQUIRE(false, "transport {} needs a build for GPUs", name_of(transport));
  return nullptr;
}

Transport transport_of_device() { return Transport::mpi; }

void copy_on_device(const void*, void*, std::size_t, const Stream&) {
  NANOTRON_REQUIRE(false, "memory of a device needs a build for GPUs");
}

std::string device_transport_error() { return ""; }
void abort_device_transports() {}
std::uint64_t device_transport_bytes() { return 0; }

}  // namespace detail

namespace {

constexpr std::align_val_t alignment{256};

}  // namespace

RegisteredMemory::RegisteredMemory(ProcessGrid& grid, std::size_t bytes, deck::MemoryRegistration how)
    : grid_(grid), bytes_(static_cast<std::byte*>(::operator new(bytes, alignment)), bytes) {
  grid_.register_memory({bytes_, how});
}

RegisteredMemory::~RegisteredMemory() {
  grid_.register_memory({});
  ::operator delete(bytes_.data(), alignment);
}

}  // namespace nanotron::comm
