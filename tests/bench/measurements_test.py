#!/usr/bin/env python3
"""Short measurements with the CPU engine: through a mount, and files by path. What they measure is not judged."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from mounted_pool import PROGRAM, in_own_namespace, require_fuse  # noqa: E402

BENCH = str(pathlib.Path(PROGRAM).parent / "gpu4fs-bench")


def run(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run([BENCH, *words], capture_output=True, text=True, timeout=200, check=False)


class MeasurementsTest(unittest.TestCase):
    def rows_of(self, *words: str) -> dict:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "result.json"
            result = run(*words, "--quick", "--output", str(path))
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            content = json.loads(path.read_text(encoding="utf-8"))
        self.assertEqual(content["engine"], "cpu")
        return {row["name"]: row for row in content["rows"]}

    def test_small_requests_through_fuse(self) -> None:
        rows = self.rows_of("fuse", "--engine", "cpu", "--only", "small")
        self.assertEqual(set(rows), {"fuse-first-stat-cpu", "fuse-stat-cpu", "fuse-direct-4k-cpu"})
        for row in rows.values():
            self.assertGreater(row["median"], 0)
            self.assertEqual(row["samples"], 2)

    def test_files_by_path(self) -> None:
        rows = self.rows_of("run", "--engine", "cpu", "--only", "paths")
        self.assertLessEqual({"paths-ring", "paths-ring-peer", "paths-rings", "paths-rings-peer"}, set(rows))
        self.assertAlmostEqual(rows["paths-ring-peer"]["ratio"],
                               rows["paths-ring"]["median"] / rows["paths-ring-peer"]["limit"], delta=1e-3)

    def test_nvme_driver(self) -> None:
        rows = self.rows_of("nvme", "--engine", "cpu", "--only", "rate", "latency")
        for place in ("controller", "thread"):
            for size in ("4k", "512"):
                for verb in ("read", "write"):
                    row = rows[f"nvme-{verb}-{size}-{place}"]
                    self.assertGreater(row["median"], 0)
                    self.assertGreater(row["limit"], 0)
        self.assertLessEqual({"nvme-added-10us-p50", "nvme-added-100us-p99"}, set(rows))

    def test_nvme_driver_over_sizes(self) -> None:
        rows = self.rows_of("nvme", "--engine", "cpu", "--only", "sizes", "size-latency")
        self.assertEqual(len(rows), 4 * (4 + 3 + 4) + 2 * 4 * 8)
        limits = {}
        for name, row in rows.items():
            self.assertGreater(row["median"], 0)
            self.assertAlmostEqual(row["ratio"], row["median"] / row["limit"], delta=1e-4 * row["ratio"])
            self.assertEqual(row["unit"], "GB/s" if name.startswith("nvme-sizes-") else "us")
            limits.setdefault((row["unit"], "-write-" in name), set()).add(row["limit"])
        # Each limit is measured once, in this run, or is the latency of the drive.
        self.assertEqual({key: len(values) for key, values in limits.items()}, dict.fromkeys(limits, 1))
        self.assertEqual((limits["us", False], limits["us", True]), ({50}, {15}))

    def test_page_cache_by_kind(self) -> None:
        rows = self.rows_of("nvme", "--engine", "cpu", "--only", "cache")
        kinds = ("hit", "loading", "cold", "miss", "write-back")
        self.assertEqual(set(rows), {f"nvme-cache-{kind}-p{percent}" for kind in kinds for percent in (25, 50, 75, 99)})
        for name, row in rows.items():
            self.assertEqual(row["unit"], "us")
            self.assertGreater(row["median"], 0)
            self.assertRegex(row["remark"], r"^\d+ operations of this kind$")
            if limit := row.get("limit"):
                self.assertEqual(limit, 50, name)
                self.assertGreaterEqual(row["least"], 50, name)

    @unittest.skipIf(os.path.exists("/dev/nvidiactl"), "there is a GPU")
    def test_engine_that_is_not_there(self) -> None:
        for engine in ("cuda", "both"):
            result = run("fuse", "--engine", engine, "--quick")
            self.assertEqual(result.returncode, 8)
            self.assertIn("there is no GPU engine: ", result.stderr)


if __name__ == "__main__":
    require_fuse()
    in_own_namespace()
    unittest.main()
