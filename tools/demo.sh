#!/usr/bin/env bash
# A first look at the engine: demo.sh KDTREE_BINARY
# Streams code from the tiny pair with DDTree, draws one round's tree, compares the decoding modes.
set -euo pipefail
kdtree=$(realpath "$1")
cd "$(dirname "$0")/.."
pair=(--model models/tiny-k2 --draft models/tiny-k2-dflash)
prompt='class Point:
    def __init__(self, x, y):
        self.x = x
        self.y = y

    def __eq__(self, other):
'
dim='' bold='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then dim=$'\e[2m' bold=$'\e[1m' plain=$'\e[0m'; fi
# Where others use the cores too, OpenMP threads that spin where they wait hold everything up.
running=$(cut -d' ' -f4 /proc/loadavg)
if [ "${running%/*}" -gt "$(nproc)" ]; then
  export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
fi
rule() { printf '\n%s%s%s\n\n' "$bold" "$1" "$plain"; }

rule 'tiny-k2 (Kimi K2 architecture, 14 M parameters) continues a prompt, DDTree budget 15'
printf '%s%s%s' "$dim" "$prompt" "$plain"
"$kdtree" generate "${pair[@]}" --prompt "$prompt" --max-tokens 96 --budget 15 --show-tree
printf '\n%sOne round: what the drafter proposed in one pass, its probability of each path,' "$dim"
printf '\nand the path that the target accepted (●). A chain of best tokens would have ended\n'
printf 'earlier.%s\n' "$plain"

rule 'The same prompt and the same tokens: plain, a chain, three trees (greedy, batch 1)'
"$kdtree" bench --decode "${pair[@]}" --prompt "$prompt" --max-tokens 96 --budgets 8,15,32
printf '%sOn a CPU a small model computes every node of a tree at full cost, so a longer\n' "$dim"
printf 'acceptance need not be faster; trees pay where reading the weights takes the time.%s\n' \
  "$plain"
printf '\nNext: build/kdtree generate --help\n'
