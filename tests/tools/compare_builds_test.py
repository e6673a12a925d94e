#!/usr/bin/env python3
"""scripts/compare_builds.py must compare the right programs, and notice one that fails."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(os.environ["GPU4FS_SOURCE"]) / "scripts" / "compare_builds.py"
# Answers 10 us, and 10 us more in each round, and records its calls in `calls`.
PROGRAM = """#!{python}
import json, sys
with open("{calls}", "a+") as calls:
    calls.write("{name} ")
    calls.seek(0)
    round_number = calls.read().split().count("{name}")
rows = [{{"name": "noop", "unit": "us", "median": {scale} * 10 * round_number}}]
if "{name}" == "right":
    rows.append({{"name": "right-only", "unit": "us", "median": 1}})
with open(sys.argv[sys.argv.index("--output") + 1], "w") as result:
    json.dump({{"rows": rows}}, result)
"""


class CompareBuildsTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.calls = pathlib.Path(folder.name, "calls")
        self.left, self.right = pathlib.Path(folder.name, "left"), pathlib.Path(folder.name, "right")
        for path, scale in (self.left, 2), (self.right, 1):
            path.mkdir()
            text = PROGRAM.format(python=sys.executable, calls=self.calls, name=path.name, scale=scale)
            (path / "gpu4fs").write_text(text, encoding="utf-8")
            (path / "gpu4fs").chmod(0o755)

    def compare(self) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, SCRIPT, "--rounds", "3", self.left, self.right], capture_output=True,
                              text=True, check=False)

    def test_table(self) -> None:
        result = self.compare()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("noop [us]: 40 (20 to 60) 1.000 | 20 (10 to 30) 0.500", result.stdout)
        self.assertIn("not in every run: right-only", result.stdout)
        self.assertEqual(self.calls.read_text(encoding="utf-8").split(), ["left", "right"] * 3)

    def test_failing_program(self) -> None:
        (self.right / "gpu4fs").write_text("#!/bin/sh\nexit 8\n", encoding="utf-8")
        result = self.compare()
        self.assertEqual(result.returncode, 1)
        self.assertIn("exit status 8", result.stderr)


if __name__ == "__main__":
    unittest.main()
