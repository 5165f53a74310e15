#!/usr/bin/env bash
# Everything that needs a GPU: the op tests on the CUDA backend, small cases under compute-sanitizer,
# and the kernel benches. Logs and CSV files go to the given directory; a failure does not stop the
# rest. The binaries are those of `make cuda`, or of tools/gpu_pack.sh.
#   tools/gpu_run.sh OUT [tests|sanitizer|bench|all]...      (all by default)
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:?"usage: tools/gpu_run.sh OUT [tests|sanitizer|bench|all]..."}
shift
steps=${*:-all}
steps=${steps//all/tests sanitizer bench}
bin=build/cuda
[ -d $bin ] || bin=build/gpu
export LD_LIBRARY_PATH=$PWD/$bin/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PATH=$PATH:/usr/local/cuda/bin
mkdir -p "$out"
failed=()

# What the sanitizers see: every kernel and every variant of it, at most 65 nodes behind at most 256
# tokens, random tests cut to three seeds.
small=(
  On/Embedding.WidensRowsOfEveryType/cuda
  On/DraftTopk.SmallCases/cuda                       # one CTA and a cluster, few and many candidates
  On/DraftTopk.ShardsMergeToTheWhole/cuda
  On/TreeBuild.TiesGoToTheSmallestRankTuple/cuda
  On/TreeBuild.RankOneIsAChainAndBudgetZeroTheRoot/cuda
  On/TreeBuild.RandomBatchesEqualTheDefinition/cuda
  AttentionImplementations.FewCases                  # simt, mma, mma_small, sm90; bf16, fp16, FP8
  On/LseMerge.RandomRowsMatchDouble/cuda
  On/TreeAccept.RandomBatchesEqualTheDefinition/cuda # greedy and sampled, targets drawn and given
  On/KvCommit.RandomBatchesEqualTheDefinition/cuda   # every copy width, FP8 scales, features
  On/NextRound.StaysWhereATargetIsMissingOrThePagesEnd/cuda
  RoundGraph.ReplaysEqualTheRoundsOfTheCpu           # all of them in one graph
)

run_tests() {
  timeout 400 $bin/gpu_tests --gtest_brief=1 >"$out/tests.log" 2>&1
  local status=$?
  tail -n 12 "$out/tests.log"
  return $status
}

# The four tools at once, each on its own process; the summary of all in sanitizer.log.
run_sanitizer() {
  local tool names status=0 pids=()
  names=$(IFS=:; echo "${small[*]}")
  for tool in memcheck racecheck initcheck synccheck; do
    KDT_TEST_SEEDS=3 OMP_NUM_THREADS=4 timeout 200 compute-sanitizer --tool $tool \
      --error-exitcode 9 --print-limit 20 $bin/gpu_tests --gtest_filter="$names" \
      >"$out/$tool.log" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  {
    printf '# cases\n'
    printf '%s\n' "${small[@]}"
    for tool in memcheck racecheck initcheck synccheck; do
      printf '\n# compute-sanitizer --tool %s\n' $tool
      grep -E '^=========|FAILED|PASSED|SKIPPED|ms total' "$out/$tool.log" | head -n 60
    done
  } >"$out/sanitizer.log"
  grep -E '^# comp|SUMMARY|FAILED|PASSED|ran\.' "$out/sanitizer.log"
  return $status
}

# Times of a round's kernels alone, as the profiler sees them, beside those of the graph.
profile_round() {
  timeout 60 ncu --metrics gpu__time_duration.sum --clock-control none --cache-control none \
    --launch-count 140 --kill yes --csv --page raw $bin/kdtree bench --backend cuda --op round \
    >"$out/round_ncu.log" 2>&1 || return 1
}

run_bench() {
  timeout 400 $bin/kdtree bench --backend cuda --csv-dir "$out" >"$out/bench.log" 2>&1
  local status=$?
  cat "$out/bench.log"
  command -v ncu >/dev/null && profile_round
  return $status
}

for step in $steps; do
  echo "== $step"
  case $step in
    tests | sanitizer | bench) run_$step || failed+=("$step") ;;
    *) echo "error: unknown step '$step'" >&2; exit 2 ;;
  esac
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "FAILED: ${failed[*]}"
  exit 1
fi
echo "all passed: $steps"
