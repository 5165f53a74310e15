#!/usr/bin/env bash
# Runs every fuzz target, or those named, for SECONDS each: fuzz.sh 300 [tiktoken tools ...]. Needs
# clang and libclang-rt (libFuzzer).
set -euo pipefail
cd "$(dirname "$0")/.."
cmake -S . -B build-fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ \
  -DKDT_FUZZ=ON -DKDT_TESTS=OFF -DKDT_OPENMP=OFF -DKDT_SANITIZE=address,undefined \
  --log-level=WARNING
cmake --build build-fuzz --target fuzzers
for target in $(find build-fuzz/src -name 'fuzz_*' -type f -executable); do
  name=$(basename "$target"); name=${name#fuzz_}
  [[ $# -lt 2 || " ${*:2} " == *" $name "* ]] || continue
  work=build-fuzz/corpus/$name
  mkdir -p "$work"
  echo "$name"
  "$target" -max_total_time="${1:-60}" -rss_limit_mb=4096 "$work" "tests/fuzz/corpus/$name"
done
