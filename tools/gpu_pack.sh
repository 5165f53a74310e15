#!/usr/bin/env bash
# Collects what tools/gpu_run.sh needs on a GPU machine without build tools into build/gpu: the
# stripped binaries of `make cuda` and the libraries that such a machine may lack.
set -euo pipefail
cd "$(dirname "$0")/.."
rm -rf build/gpu
mkdir -p build/gpu/lib
for name in gpu_tests kdtree; do
  strip -o build/gpu/$name build/cuda/$name
  ldd build/cuda/$name | awk '/=> \//{print $3}' | grep -E '/lib(fmt|gomp|pcre2)' |
    xargs -I{} cp -L {} build/gpu/lib/
done
du -sh build/gpu
