// Which of the two compiled instruction sets the CPU backend runs. Both give the same bits.
#pragma once

namespace kdt::cpu {

// True when kernels of namespace avx512 are to be called, false for avx2. Decided once: AVX-512
// (F, BW, CD, DQ, VL) where the machine has it, unless the environment variable KDT_CPU_ISA is
// "avx2". Throws kInvalidArgument when KDT_CPU_ISA names something else or the machine lacks it.
bool use_avx512();

}  // namespace kdt::cpu
