#!/usr/bin/env python3
"""Compares builds of the program by their benchmarks: compare_builds.py [options] FOLDER FOLDER...

Each FOLDER contains a built gpu4fs, as for scripts/gpu_check.sh --prebuilt; no network and no compiler is needed. The
programs alternate in rounds, so drift affects all of them alike. Prints for each row of `gpu4fs bench run` the median
over the rounds, least and greatest, and the ratio to the first FOLDER.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile


def run_bench(folder: pathlib.Path, options: argparse.Namespace, result: pathlib.Path) -> list[dict]:
    command = [folder / "gpu4fs", "bench", "run", "--engine", options.engine, "--output", result]
    for part in options.only or ["latency", "rate", "sync"]:
        command += ["--only", part]
    if options.quick:
        command.append("--quick")
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=options.limit_s)
    return json.loads(result.read_text(encoding="utf-8"))["rows"]


def print_table(folders: list[pathlib.Path], medians: dict[str, list[list[float]]], units: dict[str, str]) -> None:
    for number, folder in enumerate(folders):
        print(f"[{number}] {folder}")
    for name, of_folders in medians.items():
        cells = []
        base = statistics.median(of_folders[0])
        for values in of_folders:
            middle = statistics.median(values)
            ratio = f" {middle / base:.3f}" if base else ""
            cells.append(f"{middle:.4g} ({min(values):.4g} to {max(values):.4g}){ratio}")
        print(f"{name} [{units[name]}]: " + " | ".join(cells))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", help="a part of bench run; default latency, rate and sync")
    parser.add_argument("--engine", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--limit-s", type=int, default=120, help="of one run")
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    medians: dict[str, list[list[float]]] = {}
    units: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(options.rounds):
            for number, folder in enumerate(options.folders):
                try:
                    rows = run_bench(folder, options, pathlib.Path(scratch, "result.json"))
                except (OSError, subprocess.SubprocessError) as error:
                    print(f"compare_builds: {error}", file=sys.stderr)
                    return 1
                for row in rows:
                    units[row["name"]] = row["unit"]
                    lists = medians.setdefault(row["name"], [[] for _ in options.folders])
                    lists[number].append(row["median"])
    complete = {name: lists for name, lists in medians.items() if all(len(one) == options.rounds for one in lists)}
    print_table(options.folders, complete, units)
    for name in sorted(medians.keys() - complete.keys()):
        print(f"not in every run: {name}")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
