#!/usr/bin/env python3
"""Checks the house rules of the source tree: which layer may include which, and file sizes.

The table is the rule (docs/architecture.md explains it). Exit status 1 names every violation.
"""
import pathlib
import re
import sys

ALLOWED = {
    "base": [],
    "kdtr": ["base"],
    "tree": ["base"],
    "kv": ["base"],
    "checkpoint": ["base"],
    "text": ["base"],
    "ops": ["base", "tree"],
    "cpu": ["base", "tree", "ops"],
    "cuda": ["base", "tree", "ops"],
    "model": ["base", "checkpoint", "ops", "tree", "kv"],
    "draft": ["base", "checkpoint", "ops", "tree", "kv", "model"],
    "engine": ["base", "ops", "tree", "kv", "model", "draft"],
    "apps": ["base", "kdtr", "checkpoint", "tree", "ops", "text", "engine"],
}
CUDA_HEADER = re.compile(r'#include\s*[<"](cuda|cublas|nccl|cub/|cute)')
INCLUDE = re.compile(r'#include\s*"([a-z_]+)/')
MAX_LINES = 800


def check(root: pathlib.Path) -> list[str]:
    problems = []
    files = [p for d in ("src", "apps") for p in sorted((root / d).rglob("*")) if p.is_file()]
    for path in files:
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        rel = path.relative_to(root)
        layer = rel.parts[1] if rel.parts[0] == "src" else "apps"
        if layer not in ALLOWED:
            problems.append(f"{rel}: layer '{layer}' is not in the table")
            continue
        in_device = rel.parts[:3] == ("src", "cuda", "device")
        lines = path.read_text().splitlines()
        if len(lines) > MAX_LINES:
            problems.append(f"{rel}: {len(lines)} lines (at most {MAX_LINES})")
        for number, line in enumerate(lines, 1):
            if layer != "cuda" and (CUDA_HEADER.search(line) or path.suffix in {".cu", ".cuh"}):
                problems.append(f"{rel}:{number}: CUDA outside src/cuda")
            match = INCLUDE.match(line)
            if not match or match[1] == layer:
                if match and in_device and not line.startswith('#include "cuda/device/'):
                    problems.append(f"{rel}:{number}: cuda/device includes only cuda/device")
                continue
            if match[1] not in ALLOWED[layer] or in_device:
                problems.append(f"{rel}:{number}: {layer} may not include {match[1]}")
    return problems


if __name__ == "__main__":
    found = check(pathlib.Path(__file__).resolve().parent.parent)
    for problem in found:
        print(problem)
    sys.exit(1 if found else 0)
