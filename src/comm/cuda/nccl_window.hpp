#pragma once

// What only newer versions of NCCL have: windows (2.27), collectives by copy engines (2.28). Where the headers or the
// library are older, a deck that asks for it is refused. Weak symbols: such a library is loaded all the same.

#include <fmt/format.h>
#include <nccl.h>

#include <span>

#include "nanotron/base/error.hpp"

namespace nanotron::comm {

inline constexpr int nccl_with_windows = 22700, nccl_with_copy_engines = 22800;

inline std::string nccl_version_text(int code) {
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

/// Error(deck_error) where the headers of the build or the library are older than `version`. value: of the deck's key.
inline void require_nccl(int version, const char* key, const char* value, const char* change) {
  int library = 0;
  NANOTRON_CHECK_NCCL(ncclGetVersion(&library));
  if (NCCL_VERSION_CODE >= version && library >= version) return;
  fail(ExitCode::deck_error, {.what = fmt::format("this NCCL has no {}", value),
                              .expected = fmt::format("NCCL {} or newer", nccl_version_text(version)),
                              .found = fmt::format("{}, in a build with {}", nccl_version_text(library),
                                                   nccl_version_text(NCCL_VERSION_CODE)),
                              .where = fmt::format("{} = {}", key, value),
                              .change = change});
}

#if NCCL_VERSION_CODE >= 22700
#pragma weak ncclCommWindowRegister
#pragma weak ncclCommWindowDeregister
using NcclWindow = ncclWindow_t;
#else
using NcclWindow = void*;
#endif

/// Collective over the communicator, each rank with as many bytes, from ncclMemAlloc.
inline NcclWindow register_window([[maybe_unused]] ncclComm_t comm, [[maybe_unused]] std::span<std::byte> memory) {
  require_nccl(nccl_with_windows, "parallel%register_memory", "'symmetric'", "register_memory = 'local' or 'none'");
  NcclWindow window = nullptr;
#if NCCL_VERSION_CODE >= 22700
  NANOTRON_CHECK_NCCL(ncclCommWindowRegister(comm, memory.data(), memory.size(), &window, NCCL_WIN_COLL_SYMMETRIC));
#endif
  return window;
}

inline void deregister_window([[maybe_unused]] ncclComm_t comm, [[maybe_unused]] NcclWindow window) {
#if NCCL_VERSION_CODE >= 22700
  ncclCommWindowDeregister(comm, window);
#endif
}

/// Collectives of windows take no thread blocks where NCCL can do without.
inline void use_copy_engines([[maybe_unused]] ncclConfig_t& config) {
  require_nccl(nccl_with_copy_engines, "parallel%collective_engine", "'copies'", "collective_engine = 'blocks'");
#if NCCL_VERSION_CODE >= 22800
  config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
#endif
}

}  // namespace nanotron::comm
