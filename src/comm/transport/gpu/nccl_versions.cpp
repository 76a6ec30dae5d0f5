#include "nccl_versions.hpp"

#include <fmt/format.h>

#include "nanotron/base/error.hpp"
#include "nanotron/base/gpu_api.hpp"

#if NCCL_VERSION_CODE >= 22700  // a library without them is loaded all the same, and its version looked at
#pragma weak ncclCommWindowRegister
#pragma weak ncclCommWindowDeregister
#endif

#if NCCL_VERSION_CODE < 22907  // a newer library is asked all the same
using ncclCommMemStat_t = int;
constexpr ncclCommMemStat_t ncclStatGpuMemTotal = 3;
extern "C" ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t statistic, std::uint64_t* value);
#endif
#pragma weak ncclCommMemStats

namespace nanotron::comm {
namespace {

constexpr int with_registration = 21900, with_windows = 22700, with_copy_engines = 22800;

std::string text(int version) { return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100); }

void require_nccl(int version, const char* key, const char* value, const char* change) {
  int library = 0;
  NANOTRON_CHECK_NCCL(ncclGetVersion(&library));
  if (NCCL_VERSION_CODE >= version && library >= version) return;
  fail(ExitCode::deck_error, {.what = fmt::format("this NCCL does not have {}", value),
                              .expected = fmt::format("NCCL {} or newer", text(version)),
                              .found = fmt::format("{}, in a build with {}", text(library), text(NCCL_VERSION_CODE)),
                              .where = fmt::format("{} = {}", key, value),
                              .change = change});
}

}  // namespace

ncclComm_t make_communicator(const ncclUniqueId& id, int size, int rank,
                             [[maybe_unused]] const NcclResources& resources) {
  ncclComm_t comm = nullptr;
  if (resources.engine == deck::CollectiveEngine::copies) {
    require_nccl(with_copy_engines, "parallel%collective_engine", "'copies'", "collective_engine = 'blocks'");
  }
#if NCCL_VERSION_CODE >= 21700
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  if (resources.message_blocks > 0) config.maxCTAs = resources.message_blocks;
#if NCCL_VERSION_CODE >= 22800
  // Collectives of windows take no thread blocks where NCCL can do without.
  if (resources.engine == deck::CollectiveEngine::copies) config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
#endif
  NANOTRON_CHECK_NCCL(ncclCommInitRankConfig(&comm, size, id, rank, &config));
#else
  NANOTRON_CHECK_NCCL(ncclCommInitRank(&comm, size, id, rank));
#endif
  return comm;
}

ncclResult_t allocate_memory(void** memory, std::size_t bytes) {
#if NCCL_VERSION_CODE >= 21900
  return ncclMemAlloc(memory, bytes);
#else
  return gpuMalloc(memory, bytes) == gpuSuccess ? ncclSuccess : ncclUnhandledCudaError;
#endif
}

void free_memory(void* memory) {
#if NCCL_VERSION_CODE >= 21900
  ncclMemFree(memory);
#else
  static_cast<void>(gpuFree(memory));
#endif
}

void* register_memory([[maybe_unused]] ncclComm_t comm, [[maybe_unused]] std::span<std::byte> memory) {
  void* registration = nullptr;
  require_nccl(with_registration, "parallel%register_memory", "'local'", "register_memory = 'none'");
#if NCCL_VERSION_CODE >= 21900
  NANOTRON_CHECK_NCCL(ncclCommRegister(comm, memory.data(), memory.size(), &registration));
#endif
  return registration;
}

void deregister_memory([[maybe_unused]] ncclComm_t comm, [[maybe_unused]] void* registration) {
#if NCCL_VERSION_CODE >= 21900
  ncclCommDeregister(comm, registration);
#endif
}

NcclWindow register_window([[maybe_unused]] ncclComm_t comm, [[maybe_unused]] std::span<std::byte> memory) {
  require_nccl(with_windows, "parallel%register_memory", "'symmetric'", "register_memory = 'local' or 'none'");
  NcclWindow window = nullptr;
#if NCCL_VERSION_CODE >= 22700
  NANOTRON_CHECK_NCCL(ncclCommWindowRegister(comm, memory.data(), memory.size(), &window, NCCL_WIN_COLL_SYMMETRIC));
#endif
  return window;
}

void deregister_window([[maybe_unused]] ncclComm_t comm, [[maybe_unused]] NcclWindow window) {
#if NCCL_VERSION_CODE >= 22700
  ncclCommWindowDeregister(comm, window);
#endif
}

std::uint64_t bytes_of(ncclComm_t comm) {
  std::uint64_t bytes = 0;
  const bool is_known =
      &ncclCommMemStats != nullptr && ncclCommMemStats(comm, ncclStatGpuMemTotal, &bytes) == ncclSuccess;
  return is_known ? bytes : 0;
}

}  // namespace nanotron::comm
