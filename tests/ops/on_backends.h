// Op tests that run on every backend. A suite names itself once,
//   class KvCommit : public OnBackends {};
//   INSTANTIATE_ON_BACKENDS(KvCommit);
// its tests are TEST_P(KvCommit, ...) and call their op on backend(). On a build or machine without
// a GPU the CUDA tests report themselves skipped.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "ops/backend.h"

namespace kdt::test {

class OnBackends : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    backend_ = GetParam() == std::string("cpu") ? &cpu_backend() : cuda_backend();
    if (!backend_) GTEST_SKIP() << "no CUDA in this build, or no GPU in this machine";
  }

  const Backend& backend() const { return *backend_; }
  bool is_cpu() const { return backend_ == &cpu_backend(); }

 private:
  const Backend* backend_ = nullptr;
};

}  // namespace kdt::test

#define INSTANTIATE_ON_BACKENDS(Suite)                                \
  INSTANTIATE_TEST_SUITE_P(On, Suite, testing::Values("cpu", "cuda"), \
                           [](const auto& info) { return std::string(info.param); })
