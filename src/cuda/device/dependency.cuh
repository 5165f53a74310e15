// Programmatic dependent launch, from inside a kernel (sm_90 and up).
#pragma once

namespace kdt::cuda::device {

// Returns when the kernels before this one have ended and their writes are visible.
__device__ __forceinline__ void wait_for_previous() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Lets the next kernel's CTAs start; they still wait for this kernel's end before they read.
// Call it after wait_for_previous().
__device__ __forceinline__ void let_next_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace kdt::cuda::device
