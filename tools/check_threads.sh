#!/usr/bin/env bash
# The engine tests under ThreadSanitizer. Needs clang; OpenMP is off, the engine's own threads stay.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake -S . -B build-tsan -G Ninja -DCMAKE_CXX_COMPILER=clang++ \
  -DKDT_OPENMP=OFF -DKDT_SANITIZE=thread --log-level=WARNING
cmake --build build-tsan --target engine_test
tests='*Threads*:*Storm*:*Cancel*:*Queues*:*Destruction*:*Nan*:Limits.BatchesCross*:Limits.OneToken'
build-tsan/src/engine/engine_test --gtest_filter="$tests"
