// The one place that knows about threads: OpenMP worksharing, or a plain loop without OpenMP.
#pragma once

#include <cstdint>

namespace kdt::cpu {

// body(i) for every i in [0, n), in any order; serial when `worth_threads` is false. body must not
// throw.
template <typename Body>
void parallel_for(int64_t n, bool worth_threads, const Body& body) {
#pragma omp parallel for schedule(dynamic, 1) if (worth_threads && n > 1)
  for (int64_t i = 0; i < n; ++i) body(i);
}

}  // namespace kdt::cpu
