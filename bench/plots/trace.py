#!/usr/bin/env python3
"""Plots results of `gpu4fs trace replay --json RESULT FILE...`, two pictures for each, beside it or in --folder:

- RESULT-kinds.png: what share of all accesses to pages hits and misses, by the kind of the miss, over the size of the
  cache. These are the axes of figures 6.10 and 6.11 of the thesis on the NVMe driver, one picture for each trace; its
  second size of cache lines is missing, because a line is a page here.
- RESULT-policies.png: the hit ratio over the size of the cache, beside those of LRU and of the optimum, for reads,
  writes and both.

usage: trace.py RESULT... [--folder FOLDER]
"""

import json
import os

from pictures import base_of, folder_of, import_pyplot, parse_arguments, read_results

KINDS = [("hits", "hit"), ("clean_misses", "miss"), ("write_back_misses", "miss with write-back"),
         ("cold_misses", "cold miss")]
POLICIES = [("hit_ratio", "gpu4fs"), ("lru_hit_ratio", "LRU"), ("optimal_hit_ratio", "optimum")]
OPERATIONS = ["reads", "writes", "all"]


def size_text(size_bytes):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:g} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:g} TiB"


def read_caches(path):
    """The caches of a result, by size: {cache_bytes, reads, writes, all}."""
    with open(path, encoding="utf-8") as file:
        result = json.load(file)
    caches = sorted(result["caches"], key=lambda cache: cache["cache_bytes"])
    for cache in caches:
        for name, _ in KINDS + POLICIES:
            float(cache["all"][name])
    if not caches:
        raise ValueError("no caches")
    return caches


def kind_shares(caches):
    """For each kind its share of all accesses in each cache; those of a cache add up to 1."""
    return {name: [cache["all"][name] / cache["all"]["pages"] for cache in caches] for name, _ in KINDS}


def plot_kinds(caches, pyplot):
    figure, field = pyplot.subplots(figsize=(7, 4))
    places = range(len(caches))
    shares = kind_shares(caches)
    below = [0.0] * len(caches)
    for name, text in KINDS:
        field.bar(places, shares[name], bottom=below, label=text)
        below = [a + b for a, b in zip(below, shares[name])]
    field.set_xticks(list(places), [size_text(cache["cache_bytes"]) for cache in caches])
    field.set_ylim(0, 1)
    field.set_xlabel("size of the cache")
    field.set_ylabel("share of accesses")
    field.legend(loc="upper center", bbox_to_anchor=(0.5, 1.14), ncol=len(KINDS), fontsize="small")
    return figure


def plot_policies(caches, pyplot):
    operations = [name for name in OPERATIONS if caches[0][name]["pages"]]
    figure, fields = pyplot.subplots(1, len(operations), figsize=(4.5 * len(operations), 4), sharey=True, squeeze=False)
    sizes = [cache["cache_bytes"] for cache in caches]
    for field, operation in zip(fields[0], operations):
        for name, text in POLICIES:
            field.plot(sizes, [cache[operation][name] for cache in caches], label=text, marker="o", markersize=4)
        field.set_xscale("log", base=2)
        field.set_xticks(sizes, [size_text(size) for size in sizes], rotation=45, ha="right")
        field.minorticks_off()
        field.set_title(operation)
        field.set_xlabel("size of the cache")
        field.grid(True, alpha=0.3)
    fields[0][0].set_ylim(0, 1)  # of all: they share it
    fields[0][0].set_ylabel("hit ratio")
    fields[0][0].legend()
    return figure


def main():
    options = parse_arguments(__doc__)
    results = read_results(options.results, read_caches, "gpu4fs trace replay")
    pyplot = import_pyplot()
    for path, caches in results:
        for name, plot in (("kinds", plot_kinds), ("policies", plot_policies)):
            picture = os.path.join(folder_of(path, options), f"{base_of(path)}-{name}.png")
            figure = plot(caches, pyplot)
            figure.tight_layout()
            figure.savefig(picture, dpi=110)
            print(picture)


if __name__ == "__main__":
    main()
