#include "ops/silu_mul.h"

#include <algorithm>

#include "base/rounding.h"
#include "cpu/ops.h"
#include "cpu/parallel.h"
#include "cpu/silu.h"

namespace kdt::cpu {

void silu_mul(const SiluMulParams& p, Stream) {
  constexpr int64_t kBlock = 8192;
  parallel_for(ceil_div(p.n, kBlock), p.n > 2 * kBlock, [&](int64_t i) {
    const int64_t begin = i * kBlock;
    KDT_ISA::silu_mul_span(p.gate + begin, p.up + begin, p.y + begin,
                           std::min(kBlock, p.n - begin));
  });
}

}  // namespace kdt::cpu
