#!/usr/bin/env python3
"""Plots the sweep of `gpu4fs bench run --only sweep -o RESULT`: bandwidth by file size, a line for each level, a
picture for each quantity (write, sync, read), a field for each number of files. Next to RESULT, or in --folder.

usage: sweep.py RESULT... [--folder FOLDER]
"""

import collections
import json
import os
import sys

from pictures import base_of, folder_of, import_pyplot, parse_arguments, read_results


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
    options = parse_arguments(__doc__)
    results = read_results(options.results, read_points, "a sweep")
    for path, (_, points) in results:
        if not points:
            sys.exit(f"{path} has no rows of a sweep: gpu4fs bench run --only sweep -o RESULT makes them")
    pyplot = import_pyplot()
    for path, (result, points) in results:
        for quantity, counts in sorted(points.items()):
            picture = os.path.join(folder_of(path, options), f"{base_of(path)}-{quantity}.png")
            plot(result, quantity, counts, pyplot).savefig(picture, dpi=110)
            print(picture)


if __name__ == "__main__":
    main()
