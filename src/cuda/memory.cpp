// Device memory, copies, errors, and the device's name.
#include <string>

#include "base/error.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace kdt::cuda {

void throw_cuda_error(cudaError_t error, const char* call, const char* file, int line) {
  const bool memory = error == cudaErrorMemoryAllocation;
  throw_error(memory ? ErrorCode::kOutOfResources : ErrorCode::kInternal, "{}:{}: {}: {} ({})",
              file, line, call, cudaGetErrorString(error), cudaGetErrorName(error));
}

void require_at_most(const char* op, const char* field, int64_t found, int64_t most) {
  if (found > most)
    throw_error(ErrorCode::kUnsupported, "{}: {} is {}, expected at most {} on a GPU", op, field,
                found, most);
}

void* allocate_unwritten(size_t bytes) {
  if (bytes == 0) return nullptr;
  void* data = nullptr;
  if (cudaMalloc(&data, bytes) != cudaSuccess) {
    cudaGetLastError();  // the failure is reported below, not by the next call
    size_t free_bytes = 0, total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    throw_error(ErrorCode::kOutOfResources,
                "the GPU refused {} bytes of memory ({:.1f} GiB); {:.1f} of {:.1f} GiB are free",
                bytes, bytes / 0x1p30, free_bytes / 0x1p30, total_bytes / 0x1p30);
  }
  return data;
}

void* allocate(size_t bytes) {
  void* data = allocate_unwritten(bytes);
  if (!data) return nullptr;
  KDT_CUDA_CHECK(cudaMemset(data, 0, bytes));
  KDT_CUDA_CHECK(cudaStreamSynchronize(nullptr));  // streams that do not wait for the null stream
  return data;
}

void deallocate(void* data, size_t) {
  cudaFree(data);  // runs in destructors: an earlier kernel's error must not throw here
}

// Copies from and to pageable host memory have taken or filled it when they return.
void copy_in(void* device, const void* host, size_t bytes, Stream stream) {
  if (bytes)
    KDT_CUDA_CHECK(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, native(stream)));
}

void copy_out(void* host, const void* device, size_t bytes, Stream stream) {
  if (bytes)
    KDT_CUDA_CHECK(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, native(stream)));
}

void copy(void* to, const void* from, size_t bytes, Stream stream) {
  if (bytes)
    KDT_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, native(stream)));
}

void synchronize(Stream stream) {
  KDT_CUDA_CHECK(cudaStreamSynchronize(native(stream)));
}

std::string describe() {
  int device = 0, driver = 0;
  cudaDeviceProp properties;
  KDT_CUDA_CHECK(cudaGetDevice(&device));
  KDT_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  KDT_CUDA_CHECK(cudaDriverGetVersion(&driver));
  return std::string(properties.name) + " (sm_" + std::to_string(properties.major) +
         std::to_string(properties.minor) + ", " + std::to_string(properties.multiProcessorCount) +
         " multiprocessors), CUDA driver " + std::to_string(driver / 1000) + "." +
         std::to_string(driver % 1000 / 10);
}

}  // namespace kdt::cuda
