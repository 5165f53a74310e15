#!/usr/bin/env bash
# Everything that needs a GPU: op tests on the CUDA backend, small cases under compute-sanitizer,
# kernel benches. Logs and CSV files go to the given directory; a failure does not stop the rest.
#   tools/gpu_run.sh OUT [tests] [sanitizer] [bench]      (all three by default)
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:?"usage: tools/gpu_run.sh OUT [tests] [sanitizer] [bench]"}
shift
steps=${*:-tests sanitizer bench}
bin=build/gpu
[ -d $bin ] || bin=build/cuda
export LD_LIBRARY_PATH=$PWD/$bin/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
mkdir -p "$out"
failed=()

# Cases that cover every kernel and variant in little time under a tool that slows them a hundredfold.
small='On/KvCommit.GoldenBundles/cuda:On/LseMerge.GoldenBundlesAloneAndMixed/cuda'
small+=':On/LseMerge.NanStaysInItsRow/cuda:On/TreeBuild.TiesGoToTheSmallestRankTuple/cuda'
small+=':On/TreeBuild.RankOneIsAChainAndBudgetZeroTheRoot/cuda:On/TreeBuild.GoldenBundles/cuda'
small+=':On/DraftTopk.SmallCases/cuda:On/TreeAccept.GoldenBundles/cuda'
small+=':AttentionImplementations.FewCases'

for step in $steps; do
  case $step in
    tests)
      $bin/gpu_tests --gtest_filter='*/cuda*:Of/*:AttentionImplementations.*' --gtest_brief=1 2>&1 | tee "$out/tests.log"
      [ "${PIPESTATUS[0]}" -eq 0 ] || failed+=(tests)
      ;;
    sanitizer)
      for tool in memcheck racecheck initcheck synccheck; do
        echo "== $tool"
        timeout 100 compute-sanitizer --tool $tool --error-exitcode 9 \
          $bin/gpu_tests --gtest_filter="$small" --gtest_brief=1 >"$out/$tool.log" 2>&1 ||
          failed+=("$tool")
        grep -E 'ERROR SUMMARY|RACECHECK SUMMARY|PASSED|FAILED' "$out/$tool.log"
      done
      ;;
    bench)
      $bin/kdtree bench --backend cuda --csv-dir "$out" 2>&1 | tee "$out/bench.log"
      [ "${PIPESTATUS[0]}" -eq 0 ] || failed+=(bench)
      ;;
  esac
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "FAILED: ${failed[*]}"
  exit 1
fi
echo "all passed: $steps"
