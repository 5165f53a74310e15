// What the machine could do at best: memory read bandwidth and fp32 multiply-add peak of its CPU,
// measured. The roof over an op is the slower of moving its bytes and running its operations.
#pragma once

#include <string>
#include <vector>

#include "apps/bench_cost.h"

namespace kdt::apps {

struct Roof {
  struct Bandwidth {
    double bytes;  // read again and again
    double gb_per_s;
  };
  std::vector<Bandwidth> memory;  // ascending by size: caches first, main memory last
  double gflop_per_s = 0.0;
  int threads = 0;

  // Bandwidth of data of this size, between the measured sizes on a logarithmic scale.
  double gb_per_s(double bytes) const;
  // The least time of an op whose data comes from a working set of `working_set` bytes.
  double seconds(const OpCost& cost, double working_set) const;

  std::string text() const;  // one line
};

// Takes about a second. The buffer for main memory is at most a quarter of the free memory.
Roof measure_cpu_roof(int threads);

}  // namespace kdt::apps
