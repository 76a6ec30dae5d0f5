#pragma once

// The runtime of the GPU under one name: CUDA's, or HIP's for AMD GPUs. gpuX is cudaX or hipX, with the same arguments
// and the same meaning, unless a comment says otherwise. Empty in a build for CPUs.
//
//   NANOTRON_WITH_GPU     a build for GPUs, emulated ones too: sources in gpu/
//   NANOTRON_WITH_CUDA    NVIDIA: sources in cuda/ (cuBLASLt, cuDNN, mma)
//   NANOTRON_WITH_HIP     AMD: sources in hip/ (hipBLASLt, rocBLAS)
//
// On AMD GPUs with two dies (MI250X) a "GPU" is a die, as it is to HIP and RCCL.

#include <cstddef>

#if defined(NANOTRON_WITH_HIP)
#include <hip/hip_runtime_api.h>

#define NANOTRON_GPU_API "HIP"
#define NANOTRON_GPU_VERSION HIP_VERSION
#define NANOTRON_GPU_NAME(name) hip##name
#define NANOTRON_GPU_LIST "rocm-smi"
#define NANOTRON_VISIBLE_GPUS "ROCR_VISIBLE_DEVICES"
#define gpuDeviceProp hipDeviceProp_t
#define gpuErrorInvalidResourceHandle hipErrorInvalidHandle
#define gpuErrorMemoryAllocation hipErrorOutOfMemory
#define gpuFreeHost hipHostFree
#elif defined(NANOTRON_WITH_CUDA)
#include <cuda_runtime_api.h>

#define NANOTRON_GPU_API "CUDA"
#define NANOTRON_GPU_VERSION CUDART_VERSION
#define NANOTRON_GPU_NAME(name) cuda##name
#define NANOTRON_GPU_LIST "nvidia-smi"
#define NANOTRON_VISIBLE_GPUS "CUDA_VISIBLE_DEVICES"
#define gpuDeviceProp cudaDeviceProp
#define gpuErrorInvalidResourceHandle cudaErrorInvalidResourceHandle
#define gpuErrorMemoryAllocation cudaErrorMemoryAllocation
#define gpuFreeHost cudaFreeHost
#endif

#ifdef NANOTRON_WITH_GPU

#define gpuError_t NANOTRON_GPU_NAME(Error_t)
#define gpuSuccess NANOTRON_GPU_NAME(Success)
#define gpuErrorInvalidPitchValue NANOTRON_GPU_NAME(ErrorInvalidPitchValue)
#define gpuErrorNoDevice NANOTRON_GPU_NAME(ErrorNoDevice)
#define gpuErrorNotReady NANOTRON_GPU_NAME(ErrorNotReady)
#define gpuGetErrorName NANOTRON_GPU_NAME(GetErrorName)
#define gpuGetErrorString NANOTRON_GPU_NAME(GetErrorString)
#define gpuGetLastError NANOTRON_GPU_NAME(GetLastError)

#define gpuDeviceGetPCIBusId NANOTRON_GPU_NAME(DeviceGetPCIBusId)
#define gpuDeviceGetStreamPriorityRange NANOTRON_GPU_NAME(DeviceGetStreamPriorityRange)
#define gpuDeviceSynchronize NANOTRON_GPU_NAME(DeviceSynchronize)
#define gpuDriverGetVersion NANOTRON_GPU_NAME(DriverGetVersion)
#define gpuGetDevice NANOTRON_GPU_NAME(GetDevice)
#define gpuGetDeviceCount NANOTRON_GPU_NAME(GetDeviceCount)
#define gpuGetDeviceProperties NANOTRON_GPU_NAME(GetDeviceProperties)
#define gpuSetDevice NANOTRON_GPU_NAME(SetDevice)

#define gpuStream_t NANOTRON_GPU_NAME(Stream_t)
#define gpuStreamCreate NANOTRON_GPU_NAME(StreamCreate)
#define gpuStreamCreateWithFlags NANOTRON_GPU_NAME(StreamCreateWithFlags)
#define gpuStreamCreateWithPriority NANOTRON_GPU_NAME(StreamCreateWithPriority)
#define gpuStreamDefault NANOTRON_GPU_NAME(StreamDefault)
#define gpuStreamDestroy NANOTRON_GPU_NAME(StreamDestroy)
#define gpuStreamNonBlocking NANOTRON_GPU_NAME(StreamNonBlocking)
#define gpuStreamSynchronize NANOTRON_GPU_NAME(StreamSynchronize)
#define gpuStreamWaitEvent NANOTRON_GPU_NAME(StreamWaitEvent)

#define gpuEvent_t NANOTRON_GPU_NAME(Event_t)
#define gpuEventCreateWithFlags NANOTRON_GPU_NAME(EventCreateWithFlags)
#define gpuEventDefault NANOTRON_GPU_NAME(EventDefault)
#define gpuEventDestroy NANOTRON_GPU_NAME(EventDestroy)
#define gpuEventDisableTiming NANOTRON_GPU_NAME(EventDisableTiming)
#define gpuEventElapsedTime NANOTRON_GPU_NAME(EventElapsedTime)
#define gpuEventQuery NANOTRON_GPU_NAME(EventQuery)
#define gpuEventRecord NANOTRON_GPU_NAME(EventRecord)
#define gpuEventSynchronize NANOTRON_GPU_NAME(EventSynchronize)

#define gpuFree NANOTRON_GPU_NAME(Free)
#define gpuMalloc NANOTRON_GPU_NAME(Malloc)
#define gpuMemcpy NANOTRON_GPU_NAME(Memcpy)
#define gpuMemcpy2DAsync NANOTRON_GPU_NAME(Memcpy2DAsync)
#define gpuMemcpyAsync NANOTRON_GPU_NAME(MemcpyAsync)
#define gpuMemcpyDefault NANOTRON_GPU_NAME(MemcpyDefault)
#define gpuMemcpyDeviceToDevice NANOTRON_GPU_NAME(MemcpyDeviceToDevice)
#define gpuMemcpyDeviceToHost NANOTRON_GPU_NAME(MemcpyDeviceToHost)
#define gpuMemcpyHostToDevice NANOTRON_GPU_NAME(MemcpyHostToDevice)
#define gpuMemcpyKind NANOTRON_GPU_NAME(MemcpyKind)
#define gpuMemsetAsync NANOTRON_GPU_NAME(MemsetAsync)

namespace nanotron {

/// Pinned host memory of `bytes`, which the GPU can reach; freed by gpuFreeHost.
inline gpuError_t gpuMallocHost(void** memory, std::size_t bytes) {
#ifdef NANOTRON_WITH_HIP
  return hipHostMalloc(memory, bytes, hipHostMallocDefault);
#else
  return cudaMallocHost(memory, bytes);
#endif
}

}  // namespace nanotron

#endif
