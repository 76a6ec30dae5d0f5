#include <dlfcn.h>
#include <fmt/format.h>
#include <hip/hip_version.h>

#include <array>

#include "nanotron/base/build_info.hpp"
#include "nanotron/base/gpu_api.hpp"
#include "nanotron/base/provenance.hpp"

namespace nanotron {
namespace {

// 50731921 is 5.7.31921.
std::string hip_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000000, version / 100000 % 100, version % 100000);
}

// The version of NCCL whose interface RCCL has; 22105 is 2.21.5. Of the library that the process has.
std::string rccl_version() {
  const auto ask = reinterpret_cast<int (*)(int*)>(dlsym(RTLD_DEFAULT, "ncclGetVersion"));
  if (ask == nullptr) return "linked statically";
  int version = 0;
  ask(&version);
  return fmt::format("with the interface of NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string rocblas_version() {
  const auto ask = reinterpret_cast<int (*)(char*, std::size_t)>(dlsym(RTLD_DEFAULT, "rocblas_get_version_string"));
  std::array<char, 64> text{};
  if (ask == nullptr || ask(text.data(), text.size()) != 0) return "linked statically";
  return text.data();
}

}  // namespace

Provenance gpu_libraries() {
  Provenance rows{{"hip", fmt::format("{}, {}", hip_text(HIP_VERSION), build_info::hip)}};
  int driver = 0;
  if (gpuDriverGetVersion(&driver) == gpuSuccess) rows.emplace_back("hip_driver", hip_text(driver));
  rows.emplace_back("rccl", rccl_version());
  rows.emplace_back("rocblas", rocblas_version());
  return rows;
}

}  // namespace nanotron
