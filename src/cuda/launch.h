// How kernels are launched: with programmatic dependent launch, so that a kernel's CTAs are
// resident and past their prologue when the kernel before it ends.
//
// The price is a rule: every thread of a kernel launched here calls device::wait_for_previous()
// (device/dependency.cuh) before it relies on global memory that the kernel before may write, so a
// chain of such kernels is ordered like any other stream work.
#pragma once

#include <type_traits>

#include "cuda/check.h"
#include "ops/row_batch.h"

namespace kdt::cuda {

inline cudaStream_t native(Stream stream) {
  return static_cast<cudaStream_t>(stream.handle);
}

// Of the current device.
inline int device_attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  KDT_CUDA_CHECK(cudaGetDevice(&device));
  KDT_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

struct LaunchShape {
  dim3 grid, block;
  size_t shared_bytes = 0;  // dynamic
  int cluster = 1;          // CTAs along x per cluster
};

// Shared memory above 48 KiB is requested here; throws when a CTA of this device has less.
template <typename... Params>
void launch(void (*kernel)(Params...), const LaunchShape& shape, Stream stream,
            const std::type_identity_t<Params>&... params) {
  if (shape.shared_bytes > (48u << 10))
    KDT_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(shape.shared_bytes)));
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = native(stream);
  config.attrs = attributes;
  config.numAttrs = shape.cluster > 1 ? 2 : 1;
  KDT_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, params...));
}

}  // namespace kdt::cuda
