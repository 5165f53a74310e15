"""python -m kdtree.golden [op ...] --out DIR [--large]: writes the golden bundles."""

import argparse
import pathlib

from kdtree.golden.catalog import MODULES, all_cases


def main():
    parser = argparse.ArgumentParser(prog="python -m kdtree.golden", description=__doc__)
    parser.add_argument("op", nargs="*", help=f"default: all of {', '.join(MODULES)}")
    parser.add_argument(
        "--out", type=pathlib.Path, required=True, help="directory, made if missing"
    )
    parser.add_argument(
        "--large", action="store_true", help="also the cases too large for the repository"
    )
    args = parser.parse_args()
    unknown = set(args.op) - set(MODULES)
    if unknown:
        parser.error(
            f"no generator for {', '.join(sorted(unknown))}; there are {', '.join(MODULES)}"
        )
    args.out.mkdir(parents=True, exist_ok=True)
    for case in all_cases(args.op, args.large):
        path = case.write(args.out)
        print(f"{path.stat().st_size:>9} {path}")


if __name__ == "__main__":
    main()
