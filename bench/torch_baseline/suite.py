"""The benchmark itself: modes over the prompts of the reference, checks and timing."""

import importlib.metadata
import json
import pathlib
import statistics
import sys
from dataclasses import dataclass

from torch_baseline import decode
from torch_baseline.drafter import Drafter
from torch_baseline.target import ATTENTION_VARIANTS, EXPERT_VARIANTS, Target

ROOT = pathlib.Path(__file__).resolve().parents[2]
CALIBRATION_PROMPTS = 3


@dataclass(frozen=True)
class Mode:
    """kind: "plain", "chain" or "tree"; budget: tree nodes besides the root, else 0."""

    kind: str
    budget: int = 0

    def __str__(self):
        return f"tree {self.budget}" if self.kind == "tree" else self.kind


def add_arguments(parser):
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/tiny-k2")
    parser.add_argument("--draft", type=pathlib.Path, default=ROOT / "models/tiny-k2-dflash")
    parser.add_argument(
        "--reference", type=pathlib.Path, default=ROOT / "tests/golden/tiny_k2_reference.json"
    )
    parser.add_argument("--budgets", default="15,32,64", help="tree budgets, comma-separated")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--attention", choices=ATTENTION_VARIANTS, help="default: the faster")
    parser.add_argument("--experts", choices=EXPERT_VARIANTS, help="default: the fastest")


def versions():
    """Versions of the packages that decide the speed."""
    return {name: importlib.metadata.version(name) for name in ("torch", "transformers", "numpy")}


def trees_equal(found, expected):
    """found: Result.trees; expected: the reference's list of trees."""
    return all(
        tree.tokens == want["tree"]["node_token_ids"]
        and tree.depths == want["tree"]["node_depths"]
        and tree.parents == want["tree"]["parents"]
        and rows == want["accepted_indices"]
        for (tree, rows), want in zip(found, expected, strict=True)
    )


def equal_rounds(found, expected):
    """Number of expected rounds met at the same position with the same length."""

    def starts(lengths):
        position, out = 0, set()
        for length in lengths:
            out.add((position, length))
            position += length
        return out

    return len(starts(found) & starts(expected))


class Suite:
    """The loaded pair, the prompts, and the variant chosen for each mode."""

    def __init__(self, args):
        self.args = args
        self.reference = json.loads(args.reference.read_text())
        self.stop = set(
            json.loads((args.model / "generation_config.json").read_text())["eos_token_id"]
        )
        feature_layers = json.loads((args.draft / "config.json").read_text())["dflash_config"][
            "target_layer_ids"
        ]
        self.target = Target(args.model, feature_layers)
        self.drafter = Drafter(args.draft, self.target)
        self.modes = [Mode("plain"), Mode("chain")]
        self.modes += [Mode("tree", int(budget)) for budget in args.budgets.split(",")]
        self.variants = {}
        self.results = {}

    def generate(self, mode, prompt, keep_trees=0):
        """One prompt in the mode's variant -> decode.Result."""
        if mode.kind == "plain":
            return decode.plain(self.target, prompt, self.stop, self.args.max_tokens)
        budget = mode.budget if mode.kind == "tree" else None
        return decode.speculative(
            self.target, self.drafter, prompt, self.stop, self.args.max_tokens, budget, keep_trees
        )

    def time(self, mode, prompts=None):
        """Decode seconds over the prompts (all of them unless given)."""
        self.target.use(*self.variants[mode])
        prompts = prompts or [case["prompt_ids"] for case in self.reference]
        return sum(self.generate(mode, prompt).decode_s for prompt in prompts)

    def calibrate(self):
        """Chooses the fastest variant of every mode on the first prompts."""
        prompts = [case["prompt_ids"] for case in self.reference[:CALIBRATION_PROMPTS]]
        attentions = [self.args.attention] if self.args.attention else ATTENTION_VARIANTS
        experts = [self.args.experts] if self.args.experts else EXPERT_VARIANTS
        for mode in self.modes:
            timed = []
            for variant in [(a, e) for a in attentions for e in experts]:
                self.variants[mode] = variant
                self.generate(mode, prompts[0])
                seconds = min(self.time(mode, prompts) for _ in range(2))
                timed.append((seconds, variant))
                print(f"calibrate {mode}: {'/'.join(variant)} {seconds:.3f} s", file=sys.stderr)
            self.variants[mode] = min(timed)[1]

    def check(self):
        """Compares every mode with the reference; returns one dict per mode."""
        report = []
        for mode in self.modes:
            self.target.use(*self.variants[mode])
            keep = 3 if mode == Mode("tree", 15) else 0
            results = [self.generate(mode, c["prompt_ids"], keep) for c in self.reference]
            self.results[mode] = results
            entry = {
                "mode": str(mode),
                "tokens_equal": all(
                    r.token_ids == c["greedy_ids"][: self.args.max_tokens]
                    for r, c in zip(results, self.reference, strict=True)
                ),
            }
            key = {"plain": None, "chain": "0", "tree": str(mode.budget)}[mode.kind]
            if key in self.reference[0]["acceptance"]:
                expected = [case["acceptance"][key] for case in self.reference]
                met = sum(equal_rounds(r.acceptance, e) for r, e in zip(results, expected))
                entry["rounds_equal"] = met / sum(len(e) for e in expected)
            if keep:
                entry["trees_equal"] = all(
                    trees_equal(r.trees, c["trees_budget15"])
                    for r, c in zip(results, self.reference, strict=True)
                )
            report.append(entry)
            print(f"check {entry}", file=sys.stderr)
        return report

    def tokens(self, mode):
        """Tokens that decoding produced, the first (prefill's) of every prompt not counted."""
        return sum(len(result.token_ids) - 1 for result in self.results[mode])

    def row(self, mode, seconds):
        """One line of the table; seconds: decode seconds of the repeats."""
        rounds = [length for result in self.results[mode] for length in result.acceptance]
        median = statistics.median(seconds)
        attention, experts = self.variants[mode]
        return {
            "mode": mode.kind,
            "budget": mode.budget,
            "threads": self.args.threads,
            "tokens": self.tokens(mode),
            "decode_s": round(median, 4),
            "tokens_per_s": round(self.tokens(mode) / median, 2),
            "mean_acceptance": round(sum(rounds) / len(rounds), 4),
            "attention": attention,
            "experts": experts,
        }
