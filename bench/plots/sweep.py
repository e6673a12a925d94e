#!/usr/bin/env python3
"""Plots the sweep of `gpu4fs bench run --only sweep -o RESULT`: bandwidth by file size, a line for each level, a
picture for each quantity (write, sync, read), a field for each number of files. Next to RESULT, or in --folder.

usage: sweep.py RESULT [--folder FOLDER]
"""

import argparse
import collections
import json
import os
import sys


def read_points(path):
    """quantity -> number of files -> level -> [(bytes of a file, GB/s, least, greatest)], by size."""
    with open(path, encoding="utf-8") as file:
        result = json.load(file)
    points = collections.defaultdict(lambda: collections.defaultdict(lambda: collections.defaultdict(list)))
    for row in result["rows"]:
        kind, _, rest = row["name"].partition(":")
        if not kind.startswith("sweep-"):
            continue
        level, kibibytes, count = rest.split(":")
        point = (int(kibibytes) << 10, row["median"], row["least"], row["greatest"])
        points[kind[len("sweep-"):]][int(count)][level].append(point)
    for counts in points.values():
        for levels in counts.values():
            for line in levels.values():
                line.sort()
    return result, points


def plot(result, quantity, counts, pyplot):
    figure, fields = pyplot.subplots(1, len(counts), figsize=(5 * len(counts), 4), sharey=True, squeeze=False)
    for field, (count, levels) in zip(fields[0], sorted(counts.items())):
        for level, line in levels.items():
            sizes = [point[0] for point in line]
            values = [point[1] for point in line]
            below = [point[1] - point[2] for point in line]
            above = [point[3] - point[1] for point in line]
            field.errorbar(sizes, values, yerr=[below, above], label=level, marker="o", capsize=2)
        field.set_xscale("log", base=2)
        field.set_title(f"{count} file{'' if count == 1 else 's'}")
        field.set_xlabel("bytes of a file")
        field.grid(True, alpha=0.3)
    fields[0][0].set_ylim(bottom=0)  # of all: they share it
    fields[0][0].set_ylabel("GB/s")
    fields[0][0].legend()
    name = {"sync": "write and sync"}.get(quantity, quantity)
    machine = result["machine"]
    figure.suptitle(f"{name}, engine {result['engine']}, {machine.get('gpu') or machine.get('cpu')}")
    figure.tight_layout()
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result")
    parser.add_argument("--folder")
    options = parser.parse_args()
    try:
        result, points = read_points(options.result)
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"{options.result} is no result of a sweep: {error!r}")
    if not points:
        sys.exit(f"{options.result} has no rows of a sweep: gpu4fs bench run --only sweep -o RESULT makes them")
    try:
        import matplotlib
        matplotlib.use("agg")
        from matplotlib import pyplot
    except ImportError:
        sys.exit("there is no matplotlib: install python3-matplotlib")
    base = os.path.splitext(os.path.basename(options.result))[0]
    folder = options.folder or os.path.dirname(os.path.abspath(options.result))
    for quantity, counts in sorted(points.items()):
        path = os.path.join(folder, f"{base}-{quantity}.png")
        plot(result, quantity, counts, pyplot).savefig(path, dpi=110)
        print(path)


if __name__ == "__main__":
    main()
