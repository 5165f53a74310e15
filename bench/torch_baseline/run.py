#!/usr/bin/env python3
"""Decode speed of the pair in models/ with PyTorch on the CPU: plain, DFlash chain, DDTree.

Needs Python 3.11 and from PyPI: torch==2.11.0 transformers==5.24.0 safetensors==0.8.0 numpy.
Run from the repository root:

    python bench/torch_baseline/run.py --threads 2 --repeats 5

Everything is float32, greedy, batch 1. Every mode runs in its fastest variant of attention and
expert implementation (found by a short calibration; --attention / --experts fix them). Tokens
and acceptance lengths are checked against the reference first. Tokens per second leave prefill
out: (tokens - 1) / decode_s, because prefill gives the first token. The CSV goes to stdout, what
the checks found to stderr, and --json writes both to a file.
"""

import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import torch  # noqa: E402

from torch_baseline import suite  # noqa: E402


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    suite.add_arguments(parser)
    parser.add_argument("--json", type=pathlib.Path, help="also write the results here")
    return parser.parse_args()


def main():
    args = parse_args()
    torch.set_num_threads(args.threads)
    runner = suite.Suite(args)
    runner.calibrate()
    agreement = runner.check()
    seconds = {mode: [] for mode in runner.modes}
    for _ in range(args.repeats):
        for mode in runner.modes:
            seconds[mode].append(runner.time(mode))
    rows = [runner.row(mode, seconds[mode]) for mode in runner.modes]
    print(",".join(rows[0]))
    for row in rows:
        print(",".join(str(value) for value in row.values()))
    if args.json:
        record = {"versions": suite.versions(), "agreement": agreement, "results": rows}
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    if any(not entry["tokens_equal"] for entry in agreement):
        sys.exit("the generated tokens differ from the reference")


if __name__ == "__main__":
    main()
