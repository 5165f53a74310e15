#include "cpu/parallel.h"

#ifdef _OPENMP
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/thread.h"

namespace kdt::cpu {
namespace {

thread_local bool claimed = false;

}  // namespace

void claim_threads() {
  if (claimed) return;
  // As many threads at once as OpenMP is about to start.
  std::latch done(1);
  std::vector<std::thread> threads;
  std::string refusal;
  try {
    while (static_cast<int>(threads.size()) < max_threads() - 1)
      threads.push_back(start_thread([&] { done.wait(); }));
  } catch (const std::exception& error) {
    refusal = error.what();
  }
  const size_t started = threads.size() + 1;
  done.count_down();
  for (std::thread& thread : threads) thread.join();
  if (!refusal.empty())
    throw_error(ErrorCode::kOutOfResources, "thread {} of {}: {}", started + 1, max_threads(),
                refusal);
  claimed = true;
}

void release_threads() {
  omp_pause_resource(omp_pause_soft, omp_get_initial_device());
  claimed = false;
}

}  // namespace kdt::cpu
#endif
