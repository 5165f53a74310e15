// gpu_tests: the op tests, those of the GPU unless --gtest_filter asks for others. With
// KDT_TEST_UNWRITTEN set, workspaces are memory that nothing has written, for a tool that reports
// reads of it.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "cuda/ops.h"
#include "tests/ops/arrays.h"

int main(int argc, char** argv) {
  testing::GTEST_FLAG(filter) = "*/cuda*:AttentionImplementations.*:RoundGraph.*";
  testing::InitGoogleTest(&argc, argv);
  if (!kdt::cuda_backend()) {
    std::printf("[  SKIPPED ] all tests: no GPU in this machine\n");
    return 0;
  }
  if (std::getenv("KDT_TEST_UNWRITTEN")) {
    static kdt::Backend raw = *kdt::cuda_backend();
    raw.allocate = kdt::cuda::allocate_unwritten;
    kdt::test::raw_memory = &raw;
  }
  return RUN_ALL_TESTS();
}
