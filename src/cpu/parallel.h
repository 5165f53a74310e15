// The one place that knows about threads: OpenMP worksharing, or a plain loop without OpenMP.
#pragma once

#ifdef _OPENMP
#include <omp.h>
#endif

#include <cstdint>

namespace kdt::cpu {

inline int thread_limit = 0;  // of set_cpu_threads; 0: OpenMP's default

// Threads that parallel_for may use, and which of them runs the body: 0 .. max_threads() - 1. For
// scratch memory only; results must not depend on either.
#ifdef _OPENMP
inline int max_threads() {
  return thread_limit > 0 ? thread_limit : omp_get_max_threads();
}
inline int thread_index() {
  return omp_get_thread_num();
}
// Ends the threads that parallel_for keeps for the calling thread. Each thread that calls it has
// its own, and where all together outnumber the cores, libgomp puts them to sleep at every barrier:
// a thread that only loads weights would make the decoding thread twice as slow.
void release_threads();
// What comes before the calling thread's first parallel loop: throws kOutOfResources where the
// system has not max_threads() to give. OpenMP's runtime would end the process.
void claim_threads();
#else
inline int max_threads() {
  return 1;
}
inline int thread_index() {
  return 0;
}
inline void release_threads() {}
inline void claim_threads() {}
#endif

// body(i) for every i in [0, n), in any order; serial when `worth_threads` is false. body must not
// throw; the loop itself may, see claim_threads.
template <typename Body>
void parallel_for(int64_t n, bool worth_threads, const Body& body) {
  const bool threads = worth_threads && n > 1;
  if (threads) claim_threads();
#pragma omp parallel for schedule(dynamic, 1) num_threads(max_threads()) if (threads)
  for (int64_t i = 0; i < n; ++i) body(i);
}

}  // namespace kdt::cpu
