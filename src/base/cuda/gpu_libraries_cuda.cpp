#include <dlfcn.h>
#include <fmt/format.h>

#include "nanotron/base/gpu_api.hpp"
#include "nanotron/base/provenance.hpp"

namespace nanotron {
namespace {

// All three count alike: 92801 is 9.28.1.
std::string version_text(std::size_t version) {
  return version == 0 ? "none" : fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

// Asks the library that the process has, not the headers that it was built with.
std::string nccl_version() {
  const auto ask = reinterpret_cast<int (*)(int*)>(dlsym(RTLD_DEFAULT, "ncclGetVersion"));
  if (ask == nullptr) return "linked statically";
  int version = 0;
  ask(&version);
  return version_text(static_cast<std::size_t>(version));
}

std::string cublas_version() {
  const auto ask = reinterpret_cast<std::size_t (*)()>(dlsym(RTLD_DEFAULT, "cublasLtGetVersion"));
  return ask == nullptr ? "linked statically" : version_text(ask());
}

std::string cudnn_version() {
#ifdef NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
  void* const library = dlopen("libcudnn.so.9", RTLD_LAZY);
  if (library == nullptr) return "libcudnn.so.9 was not found";
  const auto ask = reinterpret_cast<std::size_t (*)()>(dlsym(library, "cudnnGetVersion"));
  return ask == nullptr ? "libcudnn.so.9 has no cudnnGetVersion" : version_text(ask());
#elif defined(NANOTRON_WITH_CUDNN)
  return "linked statically";
#else
  return "none: built without cuDNN's headers or its frontend";
#endif
}

}  // namespace

Provenance gpu_libraries() {
  Provenance rows;
  int driver = 0;
  if (gpuDriverGetVersion(&driver) == gpuSuccess) {
    rows.emplace_back("cuda_driver", fmt::format("{}.{}", driver / 1000, driver % 1000 / 10));
  }
  rows.emplace_back("nccl", nccl_version());
  rows.emplace_back("cublas", cublas_version());
  rows.emplace_back("cudnn", cudnn_version());
  return rows;
}

}  // namespace nanotron
