// CUDA errors as kdt::Error: call, file, line and the runtime's words. (Free of base/error.h, whose
// compile-time checked formats nvcc 13 does not compile.)
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace kdt::cuda {

// Out-of-memory is kOutOfResources, everything else kInternal.
[[noreturn]] void throw_cuda_error(cudaError_t error, const char* call, const char* file, int line);

// What a launch's grid can be along x, and along y and z.
inline constexpr int64_t kMostGridX = (int64_t{1} << 31) - 1, kMostGridYZ = (1 << 16) - 1;

// Throws kUnsupported with the words of the ops' argument checks.
void require_at_most(const char* op, const char* field, int64_t found, int64_t most);

}  // namespace kdt::cuda

#define KDT_CUDA_CHECK(call)                                                \
  do {                                                                      \
    const cudaError_t kdt_error_ = (call);                                  \
    if (kdt_error_ != cudaSuccess)                                          \
      ::kdt::cuda::throw_cuda_error(kdt_error_, #call, __FILE__, __LINE__); \
  } while (false)
