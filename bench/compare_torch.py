#!/usr/bin/env python3
"""Decode speed of build/kdtree and of the PyTorch baseline, side by side, to one CSV.

Needs what bench/torch_baseline/run.py needs, and a built build/kdtree. From the repository root:

    python bench/compare_torch.py --threads 2 --repeats 5

Both run the prompts of the reference, greedy, float32, batch 1, with the same number of threads.
The repeats of the two are interleaved mode by mode, so that a slow spell of the machine hits both;
a repeat is the sum of decode seconds over the prompts, and the table holds the median repeat.
Tokens per second leave prefill and loading out: (tokens - 1) / decode_s of every prompt, since
prefill gives the first token. `ratio` compares with the baseline's same mode and budget; the last
lines compare the best tree budgets of both.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))

import torch  # noqa: E402

from torch_baseline import suite  # noqa: E402


class Engine:
    """build/kdtree, one process per prompt."""

    def __init__(self, args):
        self.args = args
        self.environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}

    def generate(self, mode, prompt):
        """One prompt -> the object that `kdtree generate --json` prints."""
        flag = {"plain": ["--no-spec"], "chain": ["--chain"]}.get(
            mode.kind, ["--budget", str(mode.budget)]
        )
        command = [
            str(self.args.binary), "generate", "--json", *flag,
            "--model", str(self.args.model), "--draft", str(self.args.draft),
            "--prompt-ids", ",".join(map(str, prompt)), "--max-tokens", str(self.args.max_tokens),
        ]  # fmt: skip
        run = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        if run.returncode != 0:
            sys.exit(f"{' '.join(command)}\nexited with {run.returncode}: {run.stderr.strip()}")
        return json.loads(run.stdout)


def cpu_model():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def git(*arguments):
    run = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True)
    return run.stdout.strip()


def header(args, now):
    commit = git("rev-parse", "--short=12", "HEAD")
    # Results of earlier runs do not make the tree another one.
    if git("status", "--porcelain", "--untracked-files=no"):
        commit += " with local changes"
    packages = ", ".join(f"{name} {version}" for name, version in suite.versions().items())
    return [
        f"date: {now:%Y-%m-%d %H:%M} UTC",
        f"commit: {commit}",
        f"cpu: {cpu_model()}, {os.cpu_count()} logical; threads used: {args.threads}; "
        f"load average before the run: {os.getloadavg()[0]:.2f} (an idle machine is needed)",
        f"versions: Python {platform.python_version()}, {packages}, "
        f"torch CPU capability {torch.backends.cpu.get_cpu_capability()}",
        f"model: {args.model.name} + {args.draft.name}, "
        f"prompts of {args.reference.name}, at most {args.max_tokens} tokens",
        "method: bench/compare_torch.py; greedy, float32, batch 1; repeats of both interleaved, "
        f"median of {args.repeats} sums over the prompts; tokens_per_s = decoded tokens / "
        "decode_s, the prompt's first token (prefill's) and loading left out",
        "baseline: transformers DeepseekV3ForCausalLM + DFlash + DDTree in PyTorch, the fastest of "
        "its attention and expert implementations for each mode",
    ]


def engine_row(mode, args, outputs, seconds):
    tokens = sum(len(output["token_ids"]) - 1 for output in outputs)
    rounds = [length for output in outputs for length in output["acceptance_lengths"]]
    median = statistics.median(seconds)
    return {
        "mode": mode.kind,
        "budget": mode.budget,
        "threads": args.threads,
        "tokens": tokens,
        "decode_s": round(median, 4),
        "tokens_per_s": round(tokens / median, 2),
        "mean_acceptance": round(sum(rounds) / len(rounds), 4),
        "attention": "absorbed",
        "experts": "int4",
    }


def measure(args):
    """Runs everything; returns ({mode: torch row}, {mode: engine row})."""
    runner = suite.Suite(args)
    runner.calibrate()
    for entry in runner.check():
        if not entry["tokens_equal"]:
            sys.exit(f"the baseline's tokens differ from the reference: {entry}")
    engine = Engine(args)
    prompts = [case["prompt_ids"] for case in runner.reference]
    theirs = {mode: [] for mode in runner.modes}
    ours = {mode: [] for mode in runner.modes}
    outputs = {}
    for repeat in range(args.repeats):
        for mode in runner.modes:
            theirs[mode].append(runner.time(mode))
            outputs[mode] = [engine.generate(mode, prompt) for prompt in prompts]
            ours[mode].append(sum(output["timing"]["decode_s"] for output in outputs[mode]))
            print(
                f"repeat {repeat}, {mode}: torch {theirs[mode][-1]:.3f} s, "
                f"kdtree {ours[mode][-1]:.3f} s", file=sys.stderr,
            )  # fmt: skip
    for mode in runner.modes:
        differing = sum(
            output["token_ids"] != result.token_ids
            for output, result in zip(outputs[mode], runner.results[mode], strict=True)
        )
        if differing:
            sys.exit(f"{mode}: kdtree's tokens differ from the baseline's on {differing} prompts")
    return (
        {mode: runner.row(mode, theirs[mode]) for mode in runner.modes},
        {mode: engine_row(mode, args, outputs[mode], ours[mode]) for mode in runner.modes},
    )


def report(theirs, ours):
    """Lines of the CSV: both tables with ratios, then the summary as comments."""
    lines = ["engine," + ",".join(next(iter(ours.values()))) + ",ratio"]
    for mode in ours:
        ratio = ours[mode]["tokens_per_s"] / theirs[mode]["tokens_per_s"]
        for name, row, value in (("torch", theirs[mode], 1), ("kdtree", ours[mode], ratio)):
            lines.append(f"{name}," + ",".join(map(str, row.values())) + f",{value:.2f}")

    def best(rows):
        return max(
            (row for mode, row in rows.items() if mode.kind == "tree"),
            key=lambda row: row["tokens_per_s"],
        )

    plain = suite.Mode("plain")
    speedup = ours[plain]["tokens_per_s"] / theirs[plain]["tokens_per_s"]
    us, them = best(ours), best(theirs)
    tree_speedup = us["tokens_per_s"] / them["tokens_per_s"]
    lines.append(f"# plain: {speedup:.2f} x the baseline")
    lines.append(
        f"# best tree budget: kdtree {us['budget']} at {us['tokens_per_s']} tokens/s, torch "
        f"{them['budget']} at {them['tokens_per_s']}: "
        f"{tree_speedup:.2f} x the baseline"
    )
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    suite.add_arguments(parser)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/kdtree")
    parser.add_argument("--out", type=pathlib.Path, help="default: bench/results/torch_cpu_*.csv")
    args = parser.parse_args()
    if not args.binary.exists():
        sys.exit(f"{args.binary} does not exist: build it first with `make build`")
    torch.set_num_threads(args.threads)
    now = datetime.datetime.now(datetime.UTC)
    out = args.out or ROOT / f"bench/results/torch_cpu_{now:%Y-%m-%d}.csv"
    head = header(args, now)
    theirs, ours = measure(args)
    text = "".join(f"# {line}\n" for line in head) + "\n".join(report(theirs, ours)) + "\n"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
