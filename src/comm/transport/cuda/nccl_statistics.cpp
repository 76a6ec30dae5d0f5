#include "nccl_statistics.hpp"

#if NCCL_VERSION_CODE < 22907  // a newer library is asked all the same
using ncclCommMemStat_t = int;
constexpr ncclCommMemStat_t ncclStatGpuMemTotal = 3;
extern "C" ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t statistic, std::uint64_t* value);
#endif
#pragma weak ncclCommMemStats

namespace nanotron::comm {

std::uint64_t bytes_of(ncclComm_t comm) {
  std::uint64_t bytes = 0;
  const bool is_known =
      &ncclCommMemStats != nullptr && ncclCommMemStats(comm, ncclStatGpuMemTotal, &bytes) == ncclSuccess;
  return is_known ? bytes : 0;
}

}  // namespace nanotron::comm
