// gpu_tests: the op tests, those of the GPU unless --gtest_filter asks for others.
#include <gtest/gtest.h>

#include <cstdio>

#include "ops/backend.h"

int main(int argc, char** argv) {
  testing::GTEST_FLAG(filter) = "*/cuda*:AttentionImplementations.*:RoundGraph.*";
  testing::InitGoogleTest(&argc, argv);
  if (!kdt::cuda_backend()) {
    std::printf("[  SKIPPED ] all tests: no GPU in this machine\n");
    return 0;
  }
  return RUN_ALL_TESTS();
}
