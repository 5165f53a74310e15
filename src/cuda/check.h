// CUDA errors as kdt::Error: call, file, line and the runtime's words. (Free of base/error.h, whose
// compile-time checked formats nvcc 13 does not compile.)
#pragma once

#include <cuda_runtime.h>

namespace kdt::cuda {

// Out-of-memory is kOutOfResources, everything else kInternal.
[[noreturn]] void throw_cuda_error(cudaError_t error, const char* call, const char* file, int line);

}  // namespace kdt::cuda

#define KDT_CUDA_CHECK(call)                                                \
  do {                                                                      \
    const cudaError_t kdt_error_ = (call);                                  \
    if (kdt_error_ != cudaSuccess)                                          \
      ::kdt::cuda::throw_cuda_error(kdt_error_, #call, __FILE__, __LINE__); \
  } while (false)
