#include <cuda.h>
#include <dlfcn.h>

// The functions of the CUDA driver that Kokkos calls, found when they are called. A program that is linked to
// libcuda.so.1 does not start where no driver is installed, and --check and --plan need none.

namespace {

template <class F>
F* in_driver(const char* name) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  return driver == nullptr ? nullptr : reinterpret_cast<F*>(dlsym(driver, name));
}

}  // namespace

#define NANOTRON_FORWARD(name, parameters, arguments)                             \
  extern "C" __attribute__((visibility("hidden"))) CUresult name parameters {     \
    static auto* const function = in_driver<CUresult parameters>(#name);          \
    return function == nullptr ? CUDA_ERROR_NOT_INITIALIZED : function arguments; \
  }
NANOTRON_FORWARD(cuCtxGetDevice, (CUdevice * device), (device))
NANOTRON_FORWARD(cuCtxPushCurrent_v2, (CUcontext context), (context))
NANOTRON_FORWARD(cuStreamGetCtx, (CUstream stream, CUcontext* context), (stream, context))
