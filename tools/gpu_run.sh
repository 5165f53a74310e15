#!/usr/bin/env bash
# Everything that needs a GPU: the op tests on the CUDA backend, small cases under compute-sanitizer,
# and the kernel benches. Logs and CSV files go to the given directory; a failure does not stop the
# rest. The binaries are those of `make cuda`, or of tools/gpu_pack.sh.
#   tools/gpu_run.sh OUT [tests|sanitizer|bench|all]...      (all by default)
set -uo pipefail
cd "$(dirname "$0")/.."
fail() {
  echo "error: $1; usage: tools/gpu_run.sh OUT [tests|sanitizer|bench|all]..." >&2
  exit 2
}
out=${1-}
case $out in '' | tests | sanitizer | bench | all) fail "no folder OUT for logs and CSV files" ;; esac
shift
steps=${*:-all}
steps=${steps//all/tests sanitizer bench}
for step in $steps; do
  case $step in tests | sanitizer | bench) ;; *) fail "unknown step '$step'" ;; esac
done
bin=build/cuda
[ -d $bin ] || bin=build/gpu
[ -x $bin/gpu_tests ] || fail "no $bin/gpu_tests: run make cuda, or unpack what tools/gpu_pack.sh packs"
export LD_LIBRARY_PATH=$PWD/$bin/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PATH=$PATH:/usr/local/cuda/bin
mkdir -p "$out" || exit
failed=()
end="all passed: $steps"

# What the sanitizers see: every kernel and every variant of it. KDT_TEST_SEEDS bounds what the
# random ones among these tests draw: two seeds, prefixes of at most 256, trees of at most 65 nodes.
small=(
  On/Embedding.WidensRowsOfEveryType/cuda
  On/DraftTopk.SmallCases/cuda                       # one part and eight, few and many candidates
  On/DraftTopk.ShardsMergeToTheWhole/cuda
  On/TreeBuild.TiesGoToTheSmallestRankTuple/cuda
  On/TreeBuild.RankOneIsAChainAndBudgetZeroTheRoot/cuda
  On/TreeBuild.RandomBatchesEqualTheDefinition/cuda
  AttentionImplementations.SmallCases                # simt, mma, mma_small, sm90; bf16, fp16, FP8
  AttentionImplementations.SmallCasesOfTwoGangs      # sm90, parts left to another gang
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
  grep -q 'SKIPPED.*all tests' "$out/tests.log" && end="skipped: no GPU in this machine"
  return $status
}

# compute-sanitizer --tool "$1" over the tests "$3", into OUT/$2.log; more arguments go to the tool.
sanitize() {
  local tool=$1 log=$2 names=$3
  shift 3
  KDT_TEST_SEEDS=2 OMP_NUM_THREADS=4 timeout "${KDT_SANITIZER_SECONDS:-200}" compute-sanitizer \
    --tool $tool --error-exitcode 9 --print-limit 20 "$@" \
    $bin/gpu_tests --gtest_filter="$names" --gtest_also_run_disabled_tests >"$out/$log.log" 2>&1
}

# What sanitizer.txt keeps of a run: how many tests passed, the summary, and the kinds of messages
# with their numbers left out, the most frequent first.
digest() {
  printf '\n%s\n' "$1"
  grep -hE '^\[  (PASSED|FAILED)  \] [0-9]+ test|SUMMARY' "$out/$2.log" | sed 's/^=* *//; s/^/  /'
  grep -hE '^========= (Error|Warning|Uninit|Invalid|Barrier)' "$out/$2.log" |
    sed -E 's/^=* *//; s/\+0x[0-9a-f]+//g; s/0x[0-9a-f]+/ADDRESS/g; s/\(.*\)( in )/\1/; s/ \[[0-9]+ hazards\]//; s/[^ ]*\///g' |
    sort | uniq -c | sort -rn | head -n 8
}

# All at once, each in a process of its own; sanitizer.txt sums them up. initcheck has workspaces
# that nothing has written, and must see a test read one. racecheck is slow: it leaves out
# RoundGraph, which has no kernel of its own, and its work is cut in four. It does not follow
# mbarriers and named barriers of a part of the block, by which the wgmma kernel orders its
# producer and its warpgroups, and reports what they separate as races: that kernel has a run of its
# own, over fewer cases, reported and not counted.
run_sanitizer() {
  command -v compute-sanitizer >/dev/null || { echo "error: no compute-sanitizer on PATH" >&2; return 1; }
  local all rest status=0 begin=$SECONDS
  local topk=On/DraftTopk.SmallCases/cuda attention=AttentionImplementations.SmallCases
  local two_gangs=AttentionImplementations.SmallCasesOfTwoGangs
  local probe=AttentionImplementations.DISABLED_ReadsUnwrittenMemory
  all=$(IFS=:; echo "${small[*]}")
  rest=${all//$attention:$two_gangs:/}
  rest=${rest//$topk:/}
  rest=${rest//:RoundGraph.ReplaysEqualTheRoundsOfTheCpu/}
  local -A pids
  start() {
    sanitize "$@" &
    pids[$2]=$!
  }
  start memcheck memcheck "$all"
  KDT_TEST_UNWRITTEN=1 start initcheck initcheck "$all"
  KDT_TEST_UNWRITTEN=1 start initcheck initcheck_probe $probe
  start synccheck synccheck "$all" --num-cuda-barriers 100000  # 39 in each of 132 thread blocks
  start racecheck racecheck_topk $topk
  start racecheck racecheck_others "$rest"
  start racecheck racecheck_attention $attention --kernel-name-exclude kns=sm90
  start racecheck racecheck_sm90 $attention --kernel-name kns=sm90
  for log in memcheck initcheck synccheck racecheck_topk racecheck_others racecheck_attention; do
    wait "${pids[$log]}" || { status=1; echo "failed: $log"; }
  done
  wait "${pids[racecheck_sm90]}"
  wait "${pids[initcheck_probe]}"
  [ $? -eq 9 ] || { status=1; echo "failed: initcheck_probe"; }
  {
    echo "# $(compute-sanitizer --version | grep -o 'Version.*'), $(nvidia-smi \
      --query-gpu=name,driver_version --format=csv,noheader | head -n 1 | sed 's/, /, driver /')"
    echo "# all tools side by side: $((SECONDS - begin)) s"
    printf '\ncases, prefixes of at most 256, trees of at most 65 nodes\n'
    printf '  %s\n' "${small[@]}"
    for tool in memcheck synccheck; do digest "$tool, all cases" $tool; done
    digest 'initcheck, all cases, workspaces that nothing has written' initcheck
    digest 'initcheck, a test that reads such memory: must be reported' initcheck_probe
    digest 'racecheck, top-k' racecheck_topk
    digest 'racecheck, all others but RoundGraph and attention' racecheck_others
    digest 'racecheck, attention without the wgmma kernel' racecheck_attention
    digest 'racecheck, the wgmma kernel: it does not follow mbarriers and named barriers, not counted' \
      racecheck_sm90
  } >"$out/sanitizer.txt"
  cat "$out/sanitizer.txt"
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
  if command -v ncu >/dev/null; then
    profile_round
    python3 tools/attention_counters.py $bin/kdtree "$out" || status=1
  fi
  return $status
}

for step in $steps; do
  echo "== $step"
  run_$step || failed+=("$step")
  case $end in skipped*) break ;; esac
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "FAILED: ${failed[*]}"
  exit 1
fi
echo "$end"
