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

# What the sanitizers see: every kernel and every variant of it, small trees behind short prefixes,
# random tests cut to two seeds.
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

# compute-sanitizer --tool "$1" over the tests "$3", into OUT/$2.log; more arguments go to the tool.
sanitize() {
  local tool=$1 log=$2 names=$3
  shift 3
  KDT_TEST_SEEDS=2 OMP_NUM_THREADS=4 timeout "${KDT_SANITIZER_SECONDS:-200}" compute-sanitizer \
    --tool $tool --error-exitcode 9 --print-limit 20 "$@" \
    $bin/gpu_tests --gtest_filter="$names" >"$out/$log.log" 2>&1
}

# All at once, each in a process of its own; the summary of all in sanitizer.log. racecheck is slow:
# it leaves out RoundGraph, which has no kernel of its own, and its work is cut in four. It does not
# follow mbarriers and named barriers of a part of the block, by which the wgmma kernel orders its
# producer and its warpgroups, and reports what they separate as races: that kernel has a run of its
# own, reported and not counted.
run_sanitizer() {
  local all topk rest status=0 pids=() logs=()
  all=$(IFS=:; echo "${small[*]}")
  topk='On/DraftTopk.SmallCases/cuda'
  rest=${all//AttentionImplementations.FewCases:/}
  rest=${rest//$topk:/}
  rest=${rest//:RoundGraph.ReplaysEqualTheRoundsOfTheCpu/}
  start() {
    sanitize "$@" &
    pids+=($!)
    logs+=("$2")
  }
  for tool in memcheck initcheck synccheck; do start $tool $tool "$all"; done
  start racecheck racecheck_topk "$topk"
  start racecheck racecheck_others "$rest"
  start racecheck racecheck_attention AttentionImplementations.FewCases \
    --kernel-name-exclude kns=sm90
  sanitize racecheck racecheck_sm90 AttentionImplementations.FewCases --kernel-name kns=sm90 &
  local last=$!
  for i in "${!pids[@]}"; do
    wait "${pids[i]}" || { status=1; echo "failed: ${logs[i]}"; }
  done
  wait $last
  {
    printf '# cases\n'
    printf '%s\n' "${small[@]}"
    for log in "${logs[@]}" racecheck_sm90; do
      printf '\n# %s\n' "$log"
      grep -E '^=========|Failure|FAILED|PASSED|ms total' "$out/$log.log" | head -n 40
    done
  } >"$out/sanitizer.log"
  grep -E '^# |SUMMARY|FAILED|PASSED' "$out/sanitizer.log"
  return $status
}

# The kernels of one round as the profiler sees them, one after another with nothing between:
# what composition.csv has beyond their sum is time between kernels.
profile_round() {
  timeout 60 ncu --metrics gpu__time_duration.sum --clock-control none --cache-control none \
    --launch-count 12 --kill yes --csv $bin/kdtree bench --backend cuda --op round \
    >"$out/round_ncu.log" 2>&1
  python3 - "$out" <<'PY'
import csv, re, sys
lines = open(sys.argv[1] + "/round_ncu.log").read().splitlines()
first = next(i for i, line in enumerate(lines) if line.startswith('"ID"'))
with open(sys.argv[1] + "/composition_kernels.csv", "w") as out:
    print("# ncu gpu__time_duration of a round's kernels, batch 1, prefix 4096, one layer", file=out)
    print("kernel,us", file=out)
    total = 0.0
    for row in csv.DictReader(lines[first:]):
        us = float(row["Metric Value"].replace(",", "")) * (1e-3 if row["Metric Unit"] == "ns" else 1)
        name = re.search(r"(\w+)(<[^()]*>)?\(", row["Kernel Name"])[1]
        total += us
        print(f"{name},{us:.2f}", file=out)
        if name == "next_round_kernel":
            break
    print(f"sum,{total:.2f}", file=out)
PY
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
