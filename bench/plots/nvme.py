#!/usr/bin/env python3
"""Plots results of `gpu4fs bench nvme --only sizes size-latency cache -o RESULT` like figures 6.1 to 6.9 of the thesis
on the NVMe driver (Djerfi, Parallel NVMe Driver with Software Cache for GPU4FS, 2024), a picture RESULT-figure-6-N.png
for each figure, next to RESULT or in --folder. A figure without data is named and not drawn.

Grey lines are what the text of the thesis says of its own machine, a Samsung 980 PRO and a GPU, with the figure that
the text is about. The curves of the thesis itself, and those of its CPU, are not here: its text has no numbers for
them.

usage: nvme.py RESULT... [--folder FOLDER]
"""

import collections
import json
import os
import re

from pictures import folder_of, import_pyplot, parse_arguments, read_results

SIZE_ROW = re.compile(r"nvme-sizes-(read|write)-(random|sequential)-(raw|shared|mapped)-(\d+)-(\d+)")
CACHE_ROW = re.compile(r"nvme-cache-(hit|loading|cold|miss|write-back)-p(\d+)")
LATENCY_ROW = re.compile(r"nvme-size-latency-(read|write)-(raw|one|many)-(\d+)-p(\d+)")
GIB = 1.073741824  # GB

# What the text says: unit, least, greatest, text. A value is both.
Reference = collections.namedtuple("Reference", "unit least greatest text")
# The lines of a figure are the keys of `Data` that they begin with.
Figure = collections.namedtuple("Figure", "number title kind lines references")
# Kinds of acquisitions of a page. A locked hit of the thesis finds its page behind the lock of its set, because
# somebody else has loaded it; here whoever comes later waits for the load without a lock.
CACHE_KINDS = {"hit": "hit", "loading": "hit on the way", "cold": "cold miss", "miss": "miss",
               "write-back": "miss with\nwrite-back"}
USES = {"raw": "without the driver", "shared": "driver", "mapped": "driver", "one": "driver", "many": "driver"}


def value(unit, number, text):
    return Reference(unit, number, number, text)


FIGURES = [
    Figure("6.1", "random reads without the driver", "balance", [("read", "random", "raw")],
           [value("GB/s", 7, "7 GB/s (figure 6.1)"), value("million/s", 1, "one million a second (figure 6.1)")]),
    Figure("6.2", "reads without the driver", "rates",
           [("read", "random", "raw"), ("read", "sequential", "raw")],
           [value("GB/s", 3.75 * GIB, "peak, 3.75 GiB/s (text on figure 6.5)")]),
    Figure("6.3", "writes without the driver", "rates",
           [("write", "random", "raw"), ("write", "sequential", "raw")],
           [value("GB/s", 2.2 * GIB, "peak, 2.2 GiB/s (text on figure 6.6)")]),
    Figure("6.4", "latency without the driver, one lane", "latency", [("read", "raw"), ("write", "raw")],
           [value("us", 100, "around 100 us (figure 6.4)")]),
    Figure("6.5", "reads with the driver and without it", "rates",
           [("read", pattern, use) for pattern in ("random", "sequential") for use in ("raw", "mapped", "shared")],
           [value("GB/s", 3.75 * GIB, "peak without, 3.75 GiB/s (figure 6.5)"),
            value("GB/s", 3.25 * GIB, "peak with, 3.25 GiB/s (figure 6.5)")]),
    Figure("6.6", "writes with the driver and without it", "rates",
           [("write", pattern, use) for pattern in ("random", "sequential") for use in ("raw", "mapped", "shared")],
           [value("GB/s", 2.2 * GIB, "peak without, 2.2 GiB/s (figure 6.6)"),
            value("GB/s", 2 * GIB, "peak with, 2 GiB/s (figure 6.6)")]),
    Figure("6.7", "latency with the driver and without it, one lane", "latency",
           [("read", "raw"), ("write", "raw"), ("read", "one"), ("write", "one")],
           [value("us", 290, "with it, 290 us (figure 6.7)")]),
    Figure("6.8", "latency with the driver, many lanes", "boxes", [("read", "many"), ("write", "many")],
           [Reference("us read", 1e3, 1e5, "quartiles, 1 to 100 ms (figure 6.8)"),
            Reference("us write", 1e5, 1e6, "quartiles, 100 ms to 1 s (figure 6.8)"),
            value("us", 200, "minimum, around 200 us (figure 6.8)")]),
    Figure("6.9", "latency of the page cache, many lanes", "kinds", [(kind,) for kind in CACHE_KINDS],
           [value("us hit", 1e3, "hit, around 1 ms (figure 6.9)"),
            value("us hit", 2, "hit, minimum 2 us (figure 6.9)"),
            Reference("us loading", 1e5, 5e5, "locked hit, 100 to 500 ms (figure 6.9)"),
            *[Reference(f"us {kind}", 1e4, 1e5, "misses, 10 to 100 ms (figure 6.9)")
              for kind in ("cold", "miss", "write-back")]]),
]


class Data:
    """`rates`: (verb, pattern, use, queues) -> {bytes: row}; `latencies`: (verb, lanes) -> {bytes: {percent: row}};
    `kinds`: (kind,) -> {percent: row}."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            self.result = json.load(file)
        self.rates = collections.defaultdict(dict)
        self.latencies = collections.defaultdict(lambda: collections.defaultdict(dict))
        self.kinds = collections.defaultdict(dict)
        if self.result["benchmark"] != "nvme":
            raise ValueError(f"benchmark {self.result['benchmark']}")
        for row in self.result["rows"]:
            (float(row["median"]), float(row["least"]), float(row["greatest"]))
            if found := SIZE_ROW.fullmatch(row["name"]):
                self.rates[(found[1], found[2], found[3], int(found[4]))][int(found[5])] = row
            elif found := LATENCY_ROW.fullmatch(row["name"]):
                self.latencies[(found[1], found[2])][int(found[3])][int(found[4])] = row
            elif found := CACHE_ROW.fullmatch(row["name"]):
                self.kinds[(found[1],)][int(found[2])] = row

    def lines(self, figure):
        """The lines of the figure that have data, by their keys, and the beginnings of those that have none."""
        source = {"rates": self.rates, "balance": self.rates, "kinds": self.kinds}.get(figure.kind, self.latencies)
        found, missing = {}, []
        for start in figure.lines:
            keys = sorted(key for key in source if key[:len(start)] == start)
            found.update({key: dict(sorted(source[key].items())) for key in keys})
            if not keys:
                missing.append(" ".join(start))
        return found, missing


def size_text(size_bytes):
    if size_bytes < 1024:
        return f"{size_bytes} B"
    return f"{size_bytes >> 10} KiB" if size_bytes < 1 << 20 else f"{size_bytes >> 20} MiB"


def rate_label(key):
    _, pattern, use, queues = key
    return f"{pattern}, {USES[use]}, {queues} queue{'' if queues == 1 else 's'}"


def per_second(row, size_bytes):
    """Million commands a second: median, least, greatest."""
    return [row[field] * 1e3 / size_bytes for field in ("median", "least", "greatest")]


def draw_line(field, sizes, points, label):
    """`points`: median, least and greatest of each size."""
    middle = [point[0] for point in points]
    below = [point[0] - point[1] for point in points]
    above = [point[2] - point[0] for point in points]
    field.errorbar(sizes, middle, yerr=[below, above], label=label, marker="o", markersize=4, capsize=2)


def draw_references(field, figure, units):
    for line in figure.references:
        if line.unit not in units:
            continue
        if line.least == line.greatest:
            field.axhline(line.least, color="grey", linestyle=":", label=f"thesis: {line.text}")
        else:
            field.axhspan(line.least, line.greatest, color="grey", alpha=0.2, label=f"thesis: {line.text}")


def finish_field(field, sizes, unit):
    field.set_xscale("log", base=2)
    field.set_yscale("log")
    field.set_xticks(sizes, [size_text(size) for size in sizes], rotation=45, ha="right")
    field.minorticks_off()
    field.set_xlabel("bytes of a command")
    field.set_ylabel(unit)
    field.grid(True, alpha=0.3)
    field.legend(fontsize="x-small", loc="best", framealpha=0.6)


def all_sizes(lines):
    return sorted({size for line in lines.values() for size in line})


def plot_rates(figure, lines, pyplot):
    """Bandwidth and commands a second; figure 6.1 also has the one over the other."""
    is_balance = figure.kind == "balance"
    picture, fields = pyplot.subplots(1, 3 if is_balance else 2, figsize=(16 if is_balance else 12, 5))
    limits = {}
    for key, line in lines.items():
        sizes = list(line)
        rates = [[line[size][field] for field in ("median", "least", "greatest")] for size in sizes]
        commands = [per_second(line[size], size) for size in sizes]
        draw_line(fields[0], sizes, rates, rate_label(key))
        draw_line(fields[1], sizes, commands, rate_label(key))
        limits[key[0]] = line[sizes[0]]
        if is_balance:
            fields[2].plot([rate[0] for rate in rates], [command[0] for command in commands], marker="o", markersize=4)
    for row in limits.values():
        if "limit" in row:
            fields[0].axhline(row["limit"], color="black", linestyle="--", label=f"limit: {row['limit_what']}")
    for field, unit in zip(fields, ("GB/s", "million/s")):
        draw_references(field, figure, [unit])
        finish_field(field, all_sizes(lines), unit)
    if is_balance:
        fields[2].set_xlabel("GB/s")
        fields[2].set_ylabel("million/s")
        fields[2].grid(True, alpha=0.3)
    return picture


def plot_latency(figure, lines, pyplot):
    """p50, and p99 as the upper end of its bar."""
    picture, field = pyplot.subplots(figsize=(8, 5))
    for (verb, lanes), line in lines.items():
        points = {size: rows for size, rows in line.items() if {50, 99} <= set(rows)}
        draw_line(field, list(points), [(rows[50]["median"], rows[50]["median"], rows[99]["median"])
                                        for rows in points.values()], f"{verb}, {USES[lanes]}, p50 to p99")
    for verb in sorted({key[0] for key in lines}):
        row = next(row for key, line in lines.items() if key[0] == verb for rows in line.values()
                   for row in rows.values())
        if "limit" in row:
            field.axhline(row["limit"], linestyle="--", color="black", label=f"limit, {verb}: {row['limit_what']}")
    draw_references(field, figure, ["us"])
    finish_field(field, all_sizes(lines), "us")
    return picture


def box_of(label, rows):
    return {"label": label, "med": rows[50]["median"], "q1": rows[25]["median"], "q3": rows[75]["median"],
            "whislo": rows[50]["least"], "whishi": rows[50]["greatest"], "fliers": [rows[99]["median"]]}


def has_box(rows):
    return {25, 50, 75, 99} <= set(rows)


def plot_boxes(figure, lines, pyplot):
    """Quartiles; whiskers are the least and the greatest latency, and the mark is p99."""
    picture, fields = pyplot.subplots(1, len(lines), figsize=(6.5 * len(lines), 5), sharey=True, squeeze=False)
    for field, ((verb, _), line) in zip(fields[0], lines.items()):
        boxes = [box_of(size_text(size), rows) for size, rows in line.items() if has_box(rows)]
        field.bxp(boxes, showfliers=True, flierprops={"marker": "_"})
        field.set_yscale("log")
        field.set_title(f"{verb}s: quartiles, least and greatest, p99")
        field.set_xlabel("bytes of a command")
        field.tick_params(axis="x", labelrotation=45)
        field.grid(True, alpha=0.3)
        draw_references(field, figure, ["us", f"us {verb}"])
        field.legend(fontsize="x-small")
    fields[0][0].set_ylabel("us")
    return picture


def draw_kind_references(field, figure, kind, position, drawn):
    """What the thesis says of a kind, behind its box at this position. Each text is once in the legend."""
    ends = [position - 0.4, position + 0.4]
    for line in figure.references:
        if line.unit != f"us {kind}":
            continue
        label = None if line.text in drawn else f"thesis: {line.text}"
        drawn.add(line.text)
        if line.least == line.greatest:
            field.plot(ends, [line.least, line.least], color="grey", linestyle=":", label=label)
        else:
            field.fill_between(ends, line.least, line.greatest, color="grey", alpha=0.2, label=label)


def plot_kinds(figure, lines, pyplot):
    """A box for each kind, as in plot_boxes(), and the latency of the drive."""
    picture, field = pyplot.subplots(figsize=(9, 5))
    lines = {kind: rows for (kind,), rows in lines.items() if has_box(rows)}
    field.bxp([box_of(CACHE_KINDS[kind], rows) for kind, rows in lines.items()], showfliers=True,
              flierprops={"marker": "_"})
    drawn = set()
    for position, kind in enumerate(lines, 1):
        draw_kind_references(field, figure, kind, position, drawn)
    limits = {row["limit"]: row["limit_what"] for rows in lines.values() for row in rows.values() if "limit" in row}
    for limit, text in limits.items():
        field.axhline(limit, linestyle="--", color="black", label=f"limit: {text}")
    field.set_yscale("log")
    field.set_title("quartiles, least and greatest, p99", fontsize="medium")
    field.set_ylabel("us")
    field.grid(True, alpha=0.3)
    field.legend(fontsize="x-small")
    return picture


PLOTS = {"rates": plot_rates, "balance": plot_rates, "latency": plot_latency, "boxes": plot_boxes, "kinds": plot_kinds}


def draw_result(path, data, folder, pyplot):
    base = os.path.splitext(os.path.basename(path))[0]
    machine = data.result["machine"]
    for figure in FIGURES:
        lines, missing = data.lines(figure)
        if missing:
            what = "not drawn, " if not lines else ""
            print(f"{path}: figure {figure.number}: {what}no rows of {', '.join(missing)}")
        if not lines:
            continue
        picture = PLOTS[figure.kind](figure, lines, pyplot)
        picture.suptitle(f"as figure {figure.number}: {figure.title}\nengine {data.result['engine']}, "
                         f"{machine.get('gpu') or machine.get('cpu')}", fontsize="medium")
        picture.tight_layout()
        name = os.path.join(folder, f"{base}-figure-{figure.number.replace('.', '-')}.png")
        picture.savefig(name, dpi=110)
        pyplot.close(picture)
        print(name)


def main():
    options = parse_arguments(__doc__)
    results = read_results(options.results, Data, "gpu4fs bench nvme")
    pyplot = import_pyplot()
    for path, data in results:
        draw_result(path, data, folder_of(path, options), pyplot)


if __name__ == "__main__":
    main()
