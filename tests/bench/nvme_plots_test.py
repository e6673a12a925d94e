#!/usr/bin/env python3
"""bench/plots/nvme.py: which lines a figure has, what it says of those that it has not, and pictures."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from plot_programs import load_plots  # noqa: E402

PLOTS = os.path.join(os.environ["GPU4FS_SOURCE"], "bench", "plots", "nvme.py")
SIZES = (512, 4096, 1 << 20)
PERCENTS = (25, 50, 75, 99)


def row(name, unit, median):
    return {"name": name, "unit": unit, "median": median, "least": median / 2, "greatest": 2 * median, "limit": 8,
            "limit_what": "limit"}


def rate_rows(verb, use, queues):
    return [row(f"nvme-sizes-{verb}-{pattern}-{use}-{queues}-{size}", "GB/s", size / 1e3)
            for pattern in ("random", "sequential") for size in SIZES]


def latency_rows(verb, lanes, percents):
    return [row(f"nvme-size-latency-{verb}-{lanes}-{size}-p{percent}", "us", percent)
            for size in SIZES for percent in percents]


def cache_rows(*kinds):
    return [row(f"nvme-cache-{kind}-p{percent}", "us", percent) for kind in kinds for percent in PERCENTS]


def all_rows():
    rows = cache_rows("hit", "loading", "cold", "miss", "write-back")
    for verb in ("read", "write"):
        for use, queues in (("raw", 24), ("mapped", 24), ("shared", 1)):
            rows += rate_rows(verb, use, queues)
        rows += latency_rows(verb, "many", PERCENTS)
        rows += latency_rows(verb, "one", (50, 99)) + latency_rows(verb, "raw", (50, 99))
    return rows


class NvmePlots(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def put(self, text):
        path = os.path.join(self.folder, "result.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def result(self, rows):
        machine = {"cpu": "a CPU", "gpu": ""}
        return self.put(json.dumps({"benchmark": "nvme", "engine": "cpu", "machine": machine, "rows": rows}))

    def plot(self, path):
        return subprocess.run([sys.executable, PLOTS, path], capture_output=True, text=True, check=False)

    def need_matplotlib(self):
        if importlib.util.find_spec("matplotlib") is None:
            self.skipTest("there is no matplotlib")

    def test_lines_of_figures(self):
        plots = load_plots(PLOTS)
        data = plots.Data(self.result(all_rows() + [row("nvme-read-4k-host", "million/s", 1)]))
        for figure in plots.FIGURES:
            lines, missing = data.lines(figure)
            self.assertEqual(missing, [])
            self.assertEqual(len(lines), len(figure.lines))
            for line in lines.values():
                self.assertEqual(tuple(line), PERCENTS if figure.kind == "kinds" else SIZES)
        self.assertEqual([figure.number for figure in plots.FIGURES], [f"6.{i}" for i in range(1, 10)])

    def test_million_commands(self):
        plots = load_plots(PLOTS)
        self.assertEqual(plots.per_second(row("", "GB/s", 4.096), 4096), [1, 0.5, 2])

    def test_missing_lines_are_named(self):
        plots = load_plots(PLOTS)
        data = plots.Data(self.result(rate_rows("read", "mapped", 24)))
        found = {figure.number: data.lines(figure) for figure in plots.FIGURES}
        self.assertEqual([number for number, (lines, _) in found.items() if lines], ["6.5"])
        self.assertEqual(set(found["6.5"][0]), {("read", "random", "mapped", 24), ("read", "sequential", "mapped", 24)})
        self.assertEqual(found["6.5"][1], ["read random raw", "read random shared", "read sequential raw",
                                           "read sequential shared"])

    def test_other_files_are_refused(self):
        for text in ("", "{}", "[]", '{"benchmark": "run", "rows": []}', '{"benchmark": "nvme", "rows": [{}]}'):
            done = self.plot(self.put(text))
            self.assertEqual(done.returncode, 1, text)
            self.assertIn("no result of gpu4fs bench nvme", done.stderr)

    def test_pictures(self):
        self.need_matplotlib()
        done = self.plot(self.result(all_rows()))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("no rows", done.stdout)
        for number in range(1, 10):
            with open(os.path.join(self.folder, f"result-figure-6-{number}.png"), "rb") as file:
                self.assertEqual(file.read(4), b"\x89PNG")

    def test_no_picture_without_data(self):
        self.need_matplotlib()
        done = self.plot(self.result(latency_rows("read", "raw", (50, 99))))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("figure 6.8: not drawn, no rows of read many, write many", done.stdout)
        self.assertIn("figure 6.4: no rows of write raw", done.stdout)
        self.assertIn("figure 6.9: not drawn, no rows of hit, loading, cold, miss, write-back", done.stdout)
        pictures = sorted(name for name in os.listdir(self.folder) if name.endswith(".png"))
        self.assertEqual(pictures, ["result-figure-6-4.png", "result-figure-6-7.png"])

    def test_kinds_that_are_there(self):
        self.need_matplotlib()
        done = self.plot(self.result(cache_rows("hit", "miss")))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("figure 6.9: no rows of loading, cold, write-back", done.stdout)
        pictures = [name for name in os.listdir(self.folder) if name.endswith(".png")]
        self.assertEqual(pictures, ["result-figure-6-9.png"])


if __name__ == "__main__":
    unittest.main()
